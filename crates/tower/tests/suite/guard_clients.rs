//! Circuit breakers for reqwest and for the client of hyper, with a real server.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use axum::{Router, body::Body, extract::State, http::StatusCode, response::Redirect, routing::get};
use http_body_util::BodyExt as _;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU16, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, BreakerState, CallError,
    adaptive::{Aimd, Bounds},
};
use tidegate_rule::{Limited, request::key};
use tidegate_tower::{GuardLayer, Guards, InFlightEnd, RequestGuard, RetryAfterLayer};
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _};

const SECOND: Duration = Duration::from_secs(1);

/// A server that responds with the configured status, and counts requests.
#[derive(Clone, Default)]
struct StatusServer {
    status: Arc<AtomicU16>,
    calls: Arc<AtomicUsize>,
}

impl StatusServer {
    fn set_status(&self, status: u16) {
        self.status.store(status, Ordering::SeqCst);
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn serve() -> (SocketAddr, StatusServer) {
    let server = StatusServer::default();
    server.set_status(200);
    let answer = async |State(server): State<StatusServer>| {
        server.calls.fetch_add(1, Ordering::SeqCst);
        (StatusCode::from_u16(server.status.load(Ordering::SeqCst)).unwrap(), "text")
    };
    let router = Router::new()
        .route("/", get(answer))
        .route("/moved", get(|| async { Redirect::temporary("/") }))
        .with_state(server.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, server)
}

/// Returns an address without a listener.
async fn closed_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

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

#[tokio::test]
async fn breaker_stops_reqwest_calls_to_failing_server() {
    let (address, server) = serve().await;
    let (breaker, manual_clock) = breaker();
    let http = reqwest::Client::new();
    let guarded = GuardLayer::new(RequestGuard::new(breaker.clone()).name("orders").for_client_calls())
        .layer(http.clone());
    let ask = || guarded.send(http.get(format!("http://{address}/")).build().unwrap());

    for (status, expected) in [(500, BreakerState::Closed), (429, BreakerState::Open)] {
        server.set_status(status);
        let answer = ask().await.unwrap();
        assert_eq!(answer.status(), status);
        assert!(answer.extensions().get::<Limited>().is_none(), "the status is from the server");
        assert_eq!(breaker.state(), expected, "{status}");
    }
    let rejected = ask().await.unwrap();
    assert_eq!((rejected.status().as_u16(), server.calls()), (503, 2), "the call was not made");
    assert_eq!(rejected.headers()["retry-after"], "5");
    assert_eq!(rejected.url().as_str(), format!("http://{address}/"));
    let limited = rejected.extensions().get::<Limited>().unwrap();
    assert!(
        limited.rule() == "orders" && matches!(limited.cause(), CallError::GuardRejected(_)),
        "{limited}"
    );
    assert!(rejected.text().await.unwrap().contains("temporary-reduced-capacity"));

    server.set_status(404);
    manual_clock.advance(SECOND * 5);
    assert_eq!(
        ask().await.unwrap().text().await.unwrap(),
        "text",
        "a client error is no failure of the server"
    );
    assert_eq!(breaker.state(), BreakerState::Closed);
}

#[tokio::test]
async fn connection_error_counts_as_host_failure() {
    let (address, server) = serve().await;
    let settings = BreakerSettings::builder().count_window(1).build().unwrap();
    let breakers = Guards::builder().build(move || Breaker::new(settings.clone()));
    // All servers of this test are on one host, so the key is the port.
    let by_port =
        key::custom(|head| head.header("x-port").and_then(|port| str::from_utf8(port).ok()).map(Into::into));
    let http = reqwest::Client::new();
    let guarded = GuardLayer::new(RequestGuard::by_key(breakers, by_port)).layer(http.clone());
    let ask = async |to: SocketAddr| {
        let request = http.get(format!("http://{to}/")).header("x-port", to.port().to_string());
        guarded.send(request.build().unwrap()).await
    };
    let closed = closed_address().await;
    assert!(ask(closed).await.unwrap_err().is_connect());
    assert_eq!(ask(closed).await.unwrap().status(), 503);
    assert_eq!(ask(address).await.unwrap().status(), 200, "other servers have their own breakers");
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn reqwest_call_is_in_flight_until_body_ends() {
    let (address, _server) = serve().await;
    let limit = Arc::new(AdaptiveLimit::new(Aimd::new(Bounds::new(1, 4, 4).unwrap())).unwrap());
    let http = reqwest::Client::new();
    let guarded = GuardLayer::new(RequestGuard::new(limit.clone()).in_flight_end(InFlightEnd::Body))
        .layer(http.clone());
    let ask = || guarded.send(http.get(format!("http://{address}/moved")).build().unwrap());
    let answer = ask().await.unwrap();
    assert_eq!(limit.in_flight(), 1);
    assert_eq!(answer.url().path(), "/", "the response keeps its URL");
    assert_eq!(answer.content_length(), Some(4));
    assert_eq!(answer.text().await.unwrap(), "text");
    assert_eq!(limit.in_flight(), 0);
    drop(ask().await.unwrap());
    assert_eq!(limit.in_flight(), 0, "given up");
    drop(Box::pin(ask()));
    assert_eq!(limit.in_flight(), 0, "never sent");
}

/// The two layers can be nested.
#[tokio::test]
async fn retry_after_layer_composes_with_breaker() {
    let (address, server) = serve().await;
    let (breaker, _manual_clock) = breaker();
    let http = reqwest::Client::new();
    let layers = (RetryAfterLayer::new().clock(Clock::manual().0), GuardLayer::new(breaker));
    let client = layers.layer(http.clone());
    let ask = || client.send(http.get(format!("http://{address}/")).build().unwrap());
    server.set_status(500);
    assert_eq!(ask().await.unwrap().status(), 500);
    assert_eq!(ask().await.unwrap().status(), 500);
    assert_eq!(ask().await.unwrap().status(), 503, "rejected by the breaker with Retry-After");
    let error = ask().await.unwrap_err();
    assert_eq!(error.retry_after(), Some(SECOND * 5));
    assert!(error.to_string().ends_with("requested a backoff; next call allowed in 5s"), "{error}");
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn breaker_works_with_hyper_client() {
    let (address, server) = serve().await;
    let (breaker, _manual_clock) = breaker();
    let client: Client<_, Body> = Client::builder(TokioExecutor::new()).build_http();
    let guarded = GuardLayer::new(RequestGuard::new(breaker).for_client_calls()).layer(client);
    let ask = async |to: SocketAddr| {
        let request = http::Request::builder().uri(format!("http://{to}/")).body(Body::empty()).unwrap();
        guarded.clone().oneshot(request).await
    };
    server.set_status(500);
    assert_eq!(ask(address).await.unwrap().status(), 500);
    assert!(ask(closed_address().await).await.is_err());
    let rejected = ask(address).await.unwrap();
    assert_eq!((rejected.status().as_u16(), server.calls()), (503, 1));
    assert!(rejected.extensions().get::<Limited>().is_some());
    assert!(!rejected.into_body().collect().await.unwrap().to_bytes().is_empty());
}
