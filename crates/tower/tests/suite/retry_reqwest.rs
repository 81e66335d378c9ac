//! Retries of reqwest with a real server that fails first.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
    response::{IntoResponse as _, Redirect},
    routing::any,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_overload::{Breaker, BreakerSettings, CallError, Retrier, RetryBuilder};
use tidegate_tower::{GuardLayer, RequestGuard, RetryAfterError, RetryAfterLayer, RetryLayer};
use tokio::{net::TcpListener, sync::Notify};
use tower::{Layer as _, ServiceExt as _};

/// Starts a server whose first requests fail with 503, and which returns the body of others.
async fn serve_failing_first(failures: usize) -> (SocketAddr, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let answer = move |State(calls): State<Arc<AtomicUsize>>, body: Bytes| async move {
        match calls.fetch_add(1, Ordering::SeqCst) < failures {
            true => StatusCode::SERVICE_UNAVAILABLE.into_response(),
            false => body.into_response(),
        }
    };
    (serve(Router::new().route("/", any(answer)).with_state(calls.clone())).await, calls)
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

fn retrier() -> RetryBuilder {
    Retrier::builder().max(2).backoff(Duration::from_millis(1)).time_limit(Duration::from_secs(30))
}

#[tokio::test]
async fn request_with_body_is_sent_again() {
    let (address, calls) = serve_failing_first(2).await;
    let http = reqwest::Client::new();
    let client = RetryLayer::new(retrier().build().unwrap()).layer(http.clone());
    let request = http.put(format!("http://{address}/")).body("text").build().unwrap();
    let response = client.send(request).await.unwrap();
    assert_eq!((response.status(), calls.load(Ordering::SeqCst)), (reqwest::StatusCode::OK, 3));
    assert_eq!(response.text().await.unwrap(), "text");
}

#[tokio::test]
async fn request_that_cannot_be_copied_is_sent_once() {
    for (method, is_stream) in [("PUT", true), ("POST", false)] {
        let (address, calls) = serve_failing_first(1).await;
        let http = reqwest::Client::new();
        let client = RetryLayer::new(retrier().build().unwrap()).layer(http.clone());
        let body = match is_stream {
            true => reqwest::Body::wrap(http_body_util::Full::new(bytes::Bytes::from("text"))),
            false => "text".into(),
        };
        let request =
            http.request(method.parse().unwrap(), format!("http://{address}/")).body(body).build().unwrap();
        let response = client.send(request).await.unwrap();
        assert_eq!((response.status().as_u16(), calls.load(Ordering::SeqCst)), (503, 1), "{method}");
    }
}

#[tokio::test]
async fn connection_error_is_retried() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let http = reqwest::Client::new();
    let retrier = retrier().build().unwrap();
    let client = RetryLayer::new(retrier.clone()).layer(http.clone());
    let error = client.send(http.get(format!("http://{address}/")).build().unwrap()).await.unwrap_err();
    assert!(matches!(&error, CallError::Failed(error) if error.is_connect()), "{error}");
    assert_eq!(retrier.counts().retries, 2);
}

#[tokio::test]
async fn rejection_of_reqwest_without_retry_time_is_not_retried() {
    let breaker = Arc::new(Breaker::new(BreakerSettings::builder().build().unwrap()));
    breaker.force_open();
    let http = reqwest::Client::new();
    let guarded = GuardLayer::new(RequestGuard::new(breaker)).layer(http.clone());
    let retrier = retrier().build().unwrap();
    let client = RetryLayer::new(retrier.clone()).layer(guarded);
    let response = client.send(http.get("http://a.test/").build().unwrap()).await.unwrap();
    assert_eq!((response.status().as_u16(), retrier.counts().retries), (503, 0));
}

#[tokio::test]
async fn redirect_loop_is_not_retried() {
    let address = serve(Router::new().route("/", any(async || Redirect::temporary("/")))).await;
    let http = reqwest::Client::new();
    let request = || http.get(format!("http://{address}/")).build().unwrap();
    let (direct, behind_backoff) = (retrier().build().unwrap(), retrier().build().unwrap());
    let client = RetryLayer::new(direct.clone()).layer(http.clone());
    let error = client.send(request()).await.unwrap_err();
    assert!(matches!(&error, CallError::Failed(error) if error.is_redirect()), "{error}");
    let client = RetryLayer::new(behind_backoff.clone()).layer(RetryAfterLayer::new().layer(http.clone()));
    let error = client.send(request()).await.unwrap_err();
    assert!(
        matches!(&error, CallError::Failed(RetryAfterError::Failed(error)) if error.is_redirect()),
        "{error}"
    );
    assert_eq!((direct.counts().retries, behind_backoff.counts().retries), (0, 0));
}

/// The first attempt hangs. The second one is answered when the first has arrived.
#[tokio::test]
async fn hedge_replaces_request_that_hangs() {
    let (arrived, released) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (arrival, cancelled) = (arrived.clone(), released.clone());
    let answer = move |headers: HeaderMap| {
        let (arrival, cancelled) = (arrival.clone(), cancelled.clone());
        async move {
            match headers["x-attempt"].as_bytes() {
                b"0" => {
                    // Dropped when the client closes the connection.
                    let _notify = NotifyOnDrop(cancelled);
                    arrival.notify_one();
                    std::future::pending::<()>().await;
                }
                _ => arrival.notified().await,
            }
            "text"
        }
    };
    let address = serve(Router::new().route("/", any(answer))).await;
    let (http, attempts) = (reqwest::Client::new(), Arc::new(AtomicUsize::new(0)));
    let numbered = http.clone().map_request(move |mut request: reqwest::Request| {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst);
        request.headers_mut().insert("x-attempt", HeaderValue::from(attempt));
        request
    });
    let retrier = retrier().max(1).hedge_after(Duration::from_millis(1)).build().unwrap();
    let client = RetryLayer::new(retrier.clone()).layer(numbered);
    let response = client.send(http.get(format!("http://{address}/")).build().unwrap()).await.unwrap();
    assert_eq!(response.text().await.unwrap(), "text");
    assert_eq!(retrier.counts().hedge_wins, 1);
    released.notified().await;
}

struct NotifyOnDrop(Arc<Notify>);

impl Drop for NotifyOnDrop {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}
