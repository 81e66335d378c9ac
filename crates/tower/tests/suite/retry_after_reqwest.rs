//! reqwest against an axum server that knows its limits.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use axum::{Router, http::StatusCode, response::Redirect, routing::get};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_limiter::Clock;
use tidegate_tower::{RetryAfterError, RetryAfterLayer};
use tokio::net::TcpListener;
use tower::Layer as _;

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// A server that says that it has had enough, and counts who does not listen.
async fn serve_overloaded() -> (SocketAddr, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let answer = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "20")], "enough") }
    };
    (serve(Router::new().route("/", get(answer))).await, calls)
}

#[tokio::test]
async fn retry_after_of_real_server_is_respected() {
    let (address, calls) = serve_overloaded().await;
    let (clock, manual_clock) = Clock::manual();
    let http = reqwest::Client::new();
    let polite = RetryAfterLayer::new().clock(clock).layer(http.clone());
    let ask = || http.get(format!("http://{address}/")).build().unwrap();

    assert_eq!(polite.send(ask()).await.unwrap().status(), 429);
    let error = polite.send(ask()).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(20)), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    manual_clock.advance(Duration::from_secs(20));
    assert_eq!(polite.send(ask()).await.unwrap().text().await.unwrap(), "enough");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn redirect_backoff_applies_to_final_server() {
    let (tired, _calls) = serve_overloaded().await;
    let elsewhere = format!("http://{tired}/");
    let door = Router::new()
        .route("/moved", get(move || async move { Redirect::temporary(&elsewhere) }))
        .route("/", get(|| async { "here" }));
    let front = serve(door).await;
    let (clock, _manual_clock) = Clock::manual();
    let http = reqwest::Client::new();
    let polite = RetryAfterLayer::new().clock(clock).layer(http.clone());
    let ask = |uri: String| http.get(uri).build().unwrap();

    assert_eq!(polite.send(ask(format!("http://{front}/moved"))).await.unwrap().status(), 429);
    assert_eq!(polite.send(ask(format!("http://{front}/"))).await.unwrap().status(), 200);
    let direct = polite.send(ask(format!("http://{tired}/"))).await;
    assert!(matches!(direct, Err(RetryAfterError::Backoff { .. })));
}

#[tokio::test]
async fn failed_call_keeps_error() {
    let http = reqwest::Client::new();
    let polite = RetryAfterLayer::new().layer(http.clone());
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let error = polite.send(http.get(format!("http://{address}/")).build().unwrap()).await.unwrap_err();
    assert!(matches!(&error, RetryAfterError::Failed(error) if error.is_connect()), "{error}");
}
