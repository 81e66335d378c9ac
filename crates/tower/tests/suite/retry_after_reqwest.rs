//! reqwest with an axum server that sends `Retry-After`.

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

/// Starts a server that always responds with 429 and `Retry-After`, and counts the calls.
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
    let client = RetryAfterLayer::new().clock(clock).layer(http.clone());
    let ask = || http.get(format!("http://{address}/")).build().unwrap();

    assert_eq!(client.send(ask()).await.unwrap().status(), 429);
    let error = client.send(ask()).await.unwrap_err();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(20)), "{error}");
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    manual_clock.advance(Duration::from_secs(20));
    assert_eq!(client.send(ask()).await.unwrap().text().await.unwrap(), "enough");
    assert_eq!(calls.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn redirect_backoff_applies_to_final_server() {
    let (overloaded, _calls) = serve_overloaded().await;
    let elsewhere = format!("http://{overloaded}/");
    let router = Router::new()
        .route("/moved", get(move || async move { Redirect::temporary(&elsewhere) }))
        .route("/", get(|| async { "here" }));
    let front = serve(router).await;
    let (clock, _manual_clock) = Clock::manual();
    let http = reqwest::Client::new();
    let client = RetryAfterLayer::new().clock(clock).layer(http.clone());
    let ask = |uri: String| http.get(uri).build().unwrap();

    assert_eq!(client.send(ask(format!("http://{front}/moved"))).await.unwrap().status(), 429);
    assert_eq!(client.send(ask(format!("http://{front}/"))).await.unwrap().status(), 200);
    let direct = client.send(ask(format!("http://{overloaded}/"))).await;
    assert!(matches!(direct, Err(RetryAfterError::Backoff(_))));
}

#[tokio::test]
async fn failed_call_keeps_error() {
    let http = reqwest::Client::new();
    let client = RetryAfterLayer::new().layer(http.clone());
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let error = client.send(http.get(format!("http://{address}/")).build().unwrap()).await.unwrap_err();
    assert!(matches!(&error, RetryAfterError::Failed(error) if error.is_connect()), "{error}");
}
