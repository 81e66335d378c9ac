//! Bandwidth limits of bodies.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{ChannelBody, TestServiceError, send_request};
use bytes::Bytes;
use http::{Request, Response};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use std::time::Duration;
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_rule::request::key;
use tidegate_tower::{BandwidthLayer, RequestBandwidth, UploadLayer};
use tower::{Layer as _, service_fn};

const CHUNK_BYTES: usize = 10_000;

/// Returns a body with all chunks available.
fn chunked_body(chunks: usize) -> ChannelBody {
    let (pieces, body) = ChannelBody::new();
    for _ in 0..chunks {
        pieces.send(Ok(Frame::data(Bytes::from(vec![b'x'; CHUNK_BYTES])))).unwrap();
    }
    body
}

fn request_by(user: &str) -> Request<()> {
    Request::builder().uri("/").header("x-user", user).body(()).unwrap()
}

/// Asserts a duration, within the tolerance of the burst.
fn assert_duration(elapsed: Duration, seconds: f64) {
    let elapsed = elapsed.as_secs_f64();
    assert!((seconds * 0.97..=seconds * 1.03).contains(&elapsed), "{elapsed} s instead of {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn responses_of_one_client_share_bandwidth() {
    let clock = Clock::tokio();
    let each = Bandwidth::builder().clock(clock.clone()).build_keyed("100kB/s").unwrap();
    let layer = BandwidthLayer::new(RequestBandwidth::by_key(each, key::header("x-user").unwrap()));
    let service = layer.layer(service_fn(|_: Request<()>| async {
        Ok::<_, TestServiceError>(Response::new(chunked_body(100)))
    }));
    let download = |user: &'static str| {
        let (service, clock) = (service.clone(), clock.clone());
        tokio::spawn(async move {
            let began = clock.now();
            let body = send_request(&service, request_by(user)).await.unwrap().into_body();
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), 100 * CHUNK_BYTES);
            clock.now().saturating_sub(began).to_duration()
        })
    };
    let (one, other, alone) = (download("alice"), download("alice"), download("bob"));
    assert_duration(alone.await.unwrap(), 10.0);
    assert_duration(one.await.unwrap().max(other.await.unwrap()), 20.0);
}

#[tokio::test(start_paused = true)]
async fn uploads_are_read_at_bandwidth() {
    let clock = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    let service =
        UploadLayer::new(bandwidth).layer(service_fn(|request: Request<ShapedStream<ChannelBody>>| async {
            let read = request.into_body().collect().await?.to_bytes().len();
            Ok::<_, TestServiceError>(Response::new(read))
        }));
    let began = clock.now();
    let read = send_request(&service, Request::new(chunked_body(50))).await.unwrap().into_body();
    assert_eq!(read, 50 * CHUNK_BYTES);
    assert_duration(clock.now().saturating_sub(began).to_duration(), 5.0);
}

/// Trailers and errors of bodies are forwarded unchanged.
#[tokio::test]
async fn trailers_and_errors_pass_unchanged() {
    let bandwidth = Bandwidth::new("1MB/s").unwrap();
    let service = BandwidthLayer::new(bandwidth).layer(service_fn(|_: Request<()>| async {
        let (pieces, body) = ChannelBody::new();
        let trailers = http::HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).unwrap();
        pieces.send(Err(TestServiceError)).unwrap();
        Ok::<_, TestServiceError>(Response::new(body))
    }));
    let mut body = send_request(&service, request_by("alice")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert_eq!(body.frame().await.unwrap().unwrap_err(), TestServiceError);
}

/// The most bytes in any second, of pieces with their time.
fn worst_second(pieces: &[(Micros, usize)]) -> usize {
    let second = |from: Micros| {
        let within =
            pieces.iter().filter(|(at, _)| (from..from.saturating_add(Micros::from_secs(1))).contains(at));
        within.map(|(_, bytes)| bytes).sum()
    };
    pieces.iter().map(|(from, _)| second(*from)).max().unwrap_or(0)
}

/// The time and the length of each piece of a body.
async fn read_pieces<B>(mut body: B, clock: &Clock) -> Vec<(Micros, usize)>
where
    B: Body<Data = Bytes, Error = TestServiceError> + Unpin,
{
    let mut pieces = Vec::new();
    while let Some(frame) = body.frame().await {
        pieces.push((clock.now(), frame.unwrap().into_data().unwrap().len()));
    }
    pieces
}

/// A body of one large frame, as a handler that responds with a vector has.
fn single_frame_body() -> ChannelBody {
    let (pieces, body) = ChannelBody::new();
    pieces.send(Ok(Frame::data(Bytes::from(vec![b'x'; 1_000_000])))).unwrap();
    body
}

#[tokio::test(start_paused = true)]
async fn response_frames_are_cut_to_the_bandwidth() {
    let clock = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    let service = BandwidthLayer::new(bandwidth).layer(service_fn(|_: Request<()>| async {
        Ok::<_, TestServiceError>(Response::new(single_frame_body()))
    }));
    let body = send_request(&service, request_by("alice")).await.unwrap().into_body();
    let pieces = read_pieces(body, &clock).await;
    assert_eq!(pieces.iter().map(|(_, bytes)| bytes).sum::<usize>(), 1_000_000);
    let worst = worst_second(&pieces);
    assert!((99_000..=101_000).contains(&worst), "{worst} bytes in one second");
}

#[tokio::test(start_paused = true)]
async fn request_frames_are_cut_to_the_bandwidth() {
    let clock = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    let service = UploadLayer::new(bandwidth).layer(service_fn(
        move |request: Request<ShapedStream<ChannelBody>>| {
            let clock = clock.clone();
            async move { Ok::<_, TestServiceError>(Response::new(read_pieces(request.into_body(), &clock).await)) }
        },
    ));
    let pieces = send_request(&service, Request::new(single_frame_body())).await.unwrap().into_body();
    assert_eq!(pieces.iter().map(|(_, bytes)| bytes).sum::<usize>(), 1_000_000);
    let worst = worst_second(&pieces);
    assert!((99_000..=101_000).contains(&worst), "{worst} bytes in one second");
}
