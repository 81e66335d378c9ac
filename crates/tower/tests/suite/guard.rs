//! Guards: the recorded outcomes, the end of a call, and rejections.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{
    ChannelBody, TestService, TestServiceError, header, is_pending, request, send_request, start, status,
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt as _;
use std::{sync::Arc, time::Duration};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, BreakerState, CallOutcome, ErrorRateSettings, ErrorThrottle,
    adaptive::{Aimd, Bounds},
};
use tidegate_rule::{
    RejectionResponse,
    request::{ResponseHead, key},
};
use tidegate_tower::{GuardLayer, Guards, InFlightEnd, RequestGuard, classify_client, classify_server};
use tower::{Layer as _, Service as _};

const SECOND: Duration = Duration::from_secs(1);

/// Returns a breaker that opens for five seconds after two consecutive failures, then admits one probe.
fn breaker() -> (Arc<Breaker>, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let settings = BreakerSettings::builder()
        .count_window(2)
        .min_calls(2)
        .half_open_calls(1)
        .open_duration(SECOND * 5)
        .build()
        .unwrap();
    (Arc::new(Breaker::with_clock(settings, clock)), manual_clock)
}

fn limit(of: u32) -> Arc<AdaptiveLimit> {
    Arc::new(AdaptiveLimit::new(Aimd::new(Bounds::new(1, of, of).unwrap())).unwrap())
}

#[tokio::test]
async fn open_breaker_rejects_until_probe_succeeds() {
    let (breaker, manual_clock) = breaker();
    let inner = TestService::new();
    let service = GuardLayer::new(RequestGuard::new(breaker.clone()).name("orders")).layer(inner.clone());

    inner.set_status(500);
    assert_eq!([status(&service).await, status(&service).await], [500, 500]);
    let rejected = send_request(&service, request()).await.unwrap();
    assert_eq!((rejected.status().as_u16(), header(&rejected, "retry-after")), (503, Some("5")));
    assert_eq!(header(&rejected, "content-type"), Some("application/problem+json"));
    let body = rejected.into_body().collect().await.unwrap().to_bytes();
    assert!(!body.is_empty());
    assert_eq!(inner.calls(), 2, "a rejected call does not reach the service");

    inner.set_status(404);
    manual_clock.advance(SECOND * 5);
    assert_eq!(status(&service).await, 404, "a client error is a success of the server");
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test]
async fn clones_share_guard() {
    let (breaker, _manual_clock) = breaker();
    let layer = GuardLayer::new(breaker);
    let (one, other) = (TestService::new(), TestService::new());
    one.set_status(0);
    let (failing, sibling) = (layer.layer(one), layer.clone().layer(other));
    for service in [failing.clone(), failing] {
        assert_eq!(send_request(&service, request()).await.unwrap_err(), TestServiceError);
    }
    assert_eq!(status(&sibling).await, 503);
}

#[tokio::test]
async fn cancelled_call_is_not_recorded() {
    let (breaker, _manual_clock) = breaker();
    let inner = TestService::new();
    let service = GuardLayer::new(breaker.clone()).layer(inner.clone());
    inner.block();
    for _ in 0..10 {
        let mut answer = start(&service, request()).await;
        assert!(is_pending(&mut answer).await);
    }
    assert_eq!(breaker.snapshot().counts.calls, 0);
    assert_eq!(breaker.state(), BreakerState::Closed);
}

struct StatusReply(u16, Option<&'static [u8]>);

impl ResponseHead for StatusReply {
    fn status(&self) -> u16 {
        self.0
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.1.filter(|_| name == "grpc-status")
    }
}

#[test]
fn responses_are_classified() {
    use CallOutcome::{Failure, Ignored, Success};
    let table: &[(u16, Option<&[u8]>, CallOutcome, CallOutcome)] = &[
        (200, None, Success, Success),
        (304, None, Success, Success),
        (400, None, Success, Success),
        (404, None, Success, Success),
        (429, None, Ignored, Failure),
        (500, None, Failure, Failure),
        (503, None, Failure, Failure),
        (200, Some(b"0"), Success, Success),
        (200, Some(b"5"), Success, Success),
        (200, Some(b"8"), Ignored, Failure),
        (200, Some(b"13"), Failure, Failure),
        (200, Some(b"14"), Failure, Failure),
        (200, Some(b"\xff"), Success, Success),
        (200, Some(b"999"), Success, Success),
    ];
    for (status, code, on_server, on_client) in table {
        let reply = StatusReply(*status, *code);
        assert_eq!(
            (classify_server(Some(&reply)), classify_client(Some(&reply))),
            (*on_server, *on_client),
            "{status} {code:?}"
        );
    }
    assert_eq!((classify_server(None), classify_client(None)), (Failure, Failure));
}

#[tokio::test]
async fn client_guard_counts_429_as_failure() {
    for (is_client, after) in [(true, 503), (false, 429)] {
        let (breaker, _manual_clock) = breaker();
        let inner = TestService::new();
        inner.set_status(429);
        let guard = RequestGuard::new(breaker);
        let guard = if is_client { guard.for_client_calls() } else { guard };
        let service = GuardLayer::new(guard).layer(inner);
        let statuses = [status(&service).await, status(&service).await, status(&service).await];
        assert_eq!(statuses, [429, 429, after]);
    }
}

#[tokio::test]
async fn each_host_has_own_breaker() {
    let settings = BreakerSettings::builder().count_window(1).build().unwrap();
    let breakers = Guards::builder().max_keys(10).build(move || Breaker::new(settings.clone()));
    let breakers = Arc::new(breakers);
    let inner = TestService::new();
    let service = GuardLayer::new(RequestGuard::by_key(breakers.clone(), key::host())).layer(inner.clone());
    let to = |host: usize| Request::builder().uri(format!("http://h{host}.test/")).body(()).unwrap();

    inner.set_status(500);
    send_request(&service, to(0)).await.unwrap();
    inner.set_status(200);
    assert_eq!(send_request(&service, to(0)).await.unwrap().status(), 503);
    assert_eq!(send_request(&service, to(1)).await.unwrap().status(), 200);
    for host in 0..1_000 {
        send_request(&service, to(host)).await.unwrap();
    }
    assert_eq!(breakers.count(), 10, "more hosts do not create more breakers");
    assert_eq!(send_request(&service, to(0)).await.unwrap().status(), 503, "and do not evict existing ones");
}

#[tokio::test]
async fn rejection_is_configurable() {
    let (breaker, _manual_clock) = breaker();
    breaker.force_open();
    let guard = RequestGuard::new(breaker).name("orders").with_response(|limited| {
        RejectionResponse::new(200)
            .header("x-from", "cache")
            .text(format!("stale: {} is unavailable", limited.rule()))
    });
    let answer = send_request(&GuardLayer::new(guard).layer(TestService::new()), request()).await.unwrap();
    assert_eq!((answer.status().as_u16(), header(&answer, "x-from")), (200, Some("cache")));
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "stale: orders is unavailable");
}

#[tokio::test]
async fn forced_open_breaker_sends_retry_after_one_second() {
    let (breaker, _manual_clock) = breaker();
    breaker.force_open();
    let rejected =
        send_request(&GuardLayer::new(breaker).layer(TestService::new()), request()).await.unwrap();
    assert_eq!(header(&rejected, "retry-after"), Some("1"));
}

#[tokio::test]
async fn error_throttle_works_as_guard() {
    let (clock, _manual_clock) = Clock::manual();
    let settings = ErrorRateSettings::builder().request_threshold(2).build().unwrap();
    let throttle = Arc::new(ErrorThrottle::with_clock(settings, "1/min", clock).unwrap());
    let inner = TestService::new();
    inner.set_status(500);
    let service = GuardLayer::new(throttle.clone()).layer(inner.clone());
    for _ in 0..10 {
        status(&service).await;
    }
    assert!(throttle.is_limiting());
    assert_eq!(status(&service).await, 503);
}

#[tokio::test]
async fn grpc_rejection_uses_grpc_status() {
    let (breaker, _manual_clock) = breaker();
    breaker.open_for(SECOND * 7);
    let mut call = request();
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let rejected = send_request(&GuardLayer::new(breaker).layer(TestService::new()), call).await.unwrap();
    assert_eq!((rejected.status().as_u16(), header(&rejected, "grpc-status")), (200, Some("14")));
    assert_eq!(header(&rejected, "content-type"), Some("application/grpc"));
    assert!(rejected.headers().contains_key("grpc-status-details-bin"));
    assert!(rejected.into_body().collect().await.unwrap().to_bytes().is_empty());
}

/// Returns a service that responds with this body.
fn respond_with_body(
    body: ChannelBody,
) -> impl tower::Service<
    Request<()>,
    Response = Response<ChannelBody>,
    Error = TestServiceError,
    Future = std::future::Ready<Result<Response<ChannelBody>, TestServiceError>>,
> {
    let mut body = Some(body);
    tower::service_fn(move |_: Request<()>| std::future::ready(Ok(Response::new(body.take().unwrap()))))
}

#[tokio::test]
async fn call_is_in_flight_until_body_ends() {
    let limit = limit(4);
    let (pieces, body) = ChannelBody::new();
    let mut service = GuardLayer::new(RequestGuard::new(limit.clone()).in_flight_end(InFlightEnd::Body))
        .layer(respond_with_body(body));
    let mut body = service.call(request()).await.unwrap().into_body();
    assert_eq!(limit.in_flight(), 1);
    pieces.send(Ok(Frame::data(Bytes::from("half")))).unwrap();
    body.frame().await.unwrap().unwrap();
    assert_eq!(limit.in_flight(), 1);
    drop(pieces);
    assert!(body.frame().await.is_none());
    assert_eq!(limit.in_flight(), 0, "the body has ended but is not dropped");
    drop(body);

    let (_pieces, body) = ChannelBody::new();
    let mut service = GuardLayer::new(RequestGuard::new(limit.clone()).in_flight_end(InFlightEnd::Body))
        .layer(respond_with_body(body));
    let answer = service.call(request()).await.unwrap();
    assert_eq!(limit.in_flight(), 1);
    drop(answer);
    assert_eq!(limit.in_flight(), 0, "given up");

    let (_pieces, body) = ChannelBody::new();
    let mut service = GuardLayer::new(limit.clone()).layer(respond_with_body(body));
    let _answer = service.call(request()).await.unwrap();
    assert_eq!(limit.in_flight(), 0, "only until the head by default");
}

/// A server stops at the known length, and does not poll for the end.
#[tokio::test]
async fn sized_body_ends_with_last_byte() {
    let limit = limit(4);
    let service = GuardLayer::new(RequestGuard::new(limit.clone()).in_flight_end(InFlightEnd::Body))
        .layer(TestService::new());
    let mut body = send_request(&service, request()).await.unwrap().into_body();
    assert_eq!(limit.in_flight(), 1);
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn body_result_is_recorded() {
    let trailers = |code: &str| {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", code.parse().unwrap());
        Ok(Frame::trailers(trailers))
    };
    let endings = [
        (Ok(Frame::data(Bytes::from("all"))), 0),
        (Err(TestServiceError), 1),
        (trailers("0"), 0),
        (trailers("5"), 0),
        (trailers("8"), 1),
        (trailers("14"), 1),
    ];
    for (last, failures) in endings {
        let (breaker, _manual_clock) = breaker();
        let (pieces, body) = ChannelBody::new();
        let mut service = GuardLayer::new(
            RequestGuard::new(breaker.clone()).for_client_calls().in_flight_end(InFlightEnd::Body),
        )
        .layer(respond_with_body(body));
        let mut body = service.call(request()).await.unwrap().into_body();
        pieces.send(last).unwrap();
        drop(pieces);
        while let Some(Ok(_)) = body.frame().await {}
        let counts = breaker.snapshot().counts;
        assert_eq!((counts.calls, counts.failures), (1, failures));
    }
}
