//! Bodies that move no faster than they may.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::stage::{Broken, Piecemeal, ask};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use std::time::Duration;
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_limiter::Clock;
use tidegate_rule::request::key;
use tidegate_tower::{BandwidthLayer, RequestBandwidth, UploadLayer};
use tower::{Layer as _, service_fn};

const CHUNK: usize = 10_000;

/// A body of so many chunks, all there at once.
fn body(chunks: usize) -> Piecemeal {
    let (pieces, body) = Piecemeal::new();
    for _ in 0..chunks {
        pieces.send(Ok(Frame::data(Bytes::from(vec![b'x'; CHUNK])))).unwrap();
    }
    body
}

fn by(user: &str) -> Request<()> {
    Request::builder().uri("/").header("x-user", user).body(()).unwrap()
}

/// What took this long at a rate, within the little that goes at once.
fn about(took: Duration, seconds: f64) {
    let took = took.as_secs_f64();
    assert!((seconds * 0.97..=seconds * 1.03).contains(&took), "{took} s, and not {seconds} s");
}

#[tokio::test(start_paused = true)]
async fn answers_of_one_client_share_its_bandwidth() {
    let clock = Clock::tokio();
    let each = Bandwidth::builder().clock(clock.clone()).build_keyed("100kB/s").unwrap();
    let layer = BandwidthLayer::new(RequestBandwidth::by_key(each, key::header("x-user").unwrap()));
    let service =
        layer.layer(service_fn(|_: Request<()>| async { Ok::<_, Broken>(Response::new(body(100))) }));
    let download = |user: &'static str| {
        let (service, clock) = (service.clone(), clock.clone());
        tokio::spawn(async move {
            let began = clock.now();
            let body = ask(&service, by(user)).await.unwrap().into_body();
            assert_eq!(body.collect().await.unwrap().to_bytes().len(), 100 * CHUNK);
            clock.now().since(began).to_duration()
        })
    };
    let (one, other, alone) = (download("alice"), download("alice"), download("bob"));
    about(alone.await.unwrap(), 10.0);
    about(one.await.unwrap().max(other.await.unwrap()), 20.0);
}

#[tokio::test(start_paused = true)]
async fn uploads_are_read_as_fast_as_they_may_be() {
    let clock = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(clock.clone()).build("100kB/s").unwrap();
    let service =
        UploadLayer::new(bandwidth).layer(service_fn(|request: Request<ShapedStream<Piecemeal>>| async {
            let read = request.into_body().collect().await?.to_bytes().len();
            Ok::<_, Broken>(Response::new(read))
        }));
    let began = clock.now();
    let read = ask(&service, Request::new(body(50))).await.unwrap().into_body();
    assert_eq!(read, 50 * CHUNK);
    about(clock.now().since(began).to_duration(), 5.0);
}

/// Trailers and broken bodies pass as they are.
#[tokio::test]
async fn what_is_not_bytes_passes_unchanged() {
    let bandwidth = Bandwidth::new("1MB/s").unwrap();
    let service = BandwidthLayer::new(bandwidth).layer(service_fn(|_: Request<()>| async {
        let (pieces, body) = Piecemeal::new();
        let trailers = http::HeaderMap::from_iter([(http::header::ETAG, "x".parse().unwrap())]);
        pieces.send(Ok(Frame::trailers(trailers))).unwrap();
        pieces.send(Err(Broken)).unwrap();
        Ok::<_, Broken>(Response::new(body))
    }));
    let mut body = ask(&service, by("alice")).await.unwrap().into_body();
    assert!(body.frame().await.unwrap().unwrap().is_trailers());
    assert_eq!(body.frame().await.unwrap().unwrap_err(), Broken);
}
