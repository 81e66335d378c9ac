//! A client that honours `Retry-After`: waits, bounds and evictions.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use http::{Request, Response};
use proptest::prelude::*;
use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_rule::{RuleConfig, Rules, Settings};
use tidegate_tower::{RetryAfterError, RetryAfterLayer, RetryAfterService};
use tower::{Layer as _, Service};

const SECOND: Duration = Duration::from_secs(1);

/// Responds to each call with the same headers, and counts the calls.
#[derive(Clone, Debug)]
struct HeaderServer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    calls: Arc<AtomicUsize>,
}

impl HeaderServer {
    fn responding(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self { status, headers: vec![(name, value.into())], calls: Arc::default() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Request<()>> for HeaderServer {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let mut answer = Response::builder().status(self.status);
        for (name, value) in &self.headers {
            answer = answer.header(*name, value);
        }
        ready(Ok(answer.body(()).unwrap()))
    }
}

fn request_to(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).unwrap()
}

fn layer() -> (RetryAfterLayer, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (RetryAfterLayer::new().clock(clock), manual_clock)
}

/// Returns the remaining backoff of a call; `None` if it was made.
async fn call_backoff(client: &RetryAfterService<HeaderServer>, uri: &str) -> Option<Duration> {
    match client.send(request_to(uri)).await {
        Ok(_) => None,
        Err(RetryAfterError::Backoff(backoff)) => Some(backoff.wait),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn retry_after_blocks_calls_until_due() {
    let server = HeaderServer::responding(429, "retry-after", "30");
    let (layer, manual_clock) = layer();
    let client = layer.layer(server.clone());

    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    assert_eq!(call_backoff(&client, "http://a.test/").await, Some(SECOND * 30));
    assert_eq!(call_backoff(&client, "http://b.test/").await, None, "another server has no backoff");
    assert_eq!(call_backoff(&client, "http://A.TEST:80/other").await, Some(SECOND * 30), "the same server");
    assert_eq!(call_backoff(&client, "http://a.test:81/").await, None, "another port is another server");

    manual_clock.advance(SECOND * 30 - Duration::from_micros(1));
    assert!(call_backoff(&client, "http://a.test/").await.is_some());
    manual_clock.advance(Duration::from_micros(1));
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    assert_eq!(server.calls(), 4);
}

#[tokio::test]
async fn exhausted_ratelimit_header_blocks_for_any_status() {
    let (layer, manual_clock) = layer();
    let client = layer.layer(HeaderServer::responding(200, "ratelimit", r#""api";r=0;t=4"#));
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    assert_eq!(call_backoff(&client, "http://a.test/").await, Some(SECOND * 4));
    manual_clock.advance(SECOND * 4);
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
}

#[tokio::test]
async fn backoff_is_capped() {
    for header_value in ["18446744073709551616", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let (layer, manual_clock) = layer();
        let client =
            layer.max_backoff(SECOND * 60).layer(HeaderServer::responding(503, "retry-after", header_value));
        assert_eq!(call_backoff(&client, "http://a.test/").await, None);
        assert_eq!(call_backoff(&client, "http://a.test/").await, Some(SECOND * 60));
        manual_clock.advance(SECOND * 60);
        assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    }
}

#[tokio::test]
async fn malformed_headers_are_ignored() {
    let (layer, _manual_clock) = layer();
    let client = layer.clone().layer(HeaderServer::responding(429, "retry-after", "in a while"));
    for _ in 0..3 {
        assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    }
    assert_eq!(layer.server_count(), 0);
}

#[tokio::test]
async fn remembered_servers_are_bounded() {
    let (layer, _manual_clock) = layer();
    let layer = layer.max_servers(10);
    let client = layer.layer(HeaderServer::responding(429, "retry-after", "30"));
    for host in 0..1_000 {
        assert_eq!(call_backoff(&client, &format!("http://h{host}.test/")).await, None);
    }
    assert_eq!(layer.server_count(), 10);
}

#[tokio::test]
async fn clones_share_backoff() {
    let server = HeaderServer::responding(429, "retry-after", "30");
    let (layer, _manual_clock) = layer();
    let (client, sibling) = (layer.layer(server.clone()), layer.clone().layer(server));
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    assert!(call_backoff(&client.clone(), "http://a.test/").await.is_some());
    assert!(call_backoff(&sibling, "http://a.test/").await.is_some());
    layer.clear("a.test");
    assert_eq!(call_backoff(&sibling, "http://a.test/").await, None);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_until_retry_after() {
    let clock = Clock::tokio();
    let layer = RetryAfterLayer::new().clock(clock.clone()).max_wait(SECOND * 10).jitter(SECOND * 60);
    let server = HeaderServer::responding(429, "retry-after", "8");
    let client = layer.layer(server.clone());
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);

    let started = clock.now();
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);
    let waited = clock.now().saturating_sub(started).to_duration();
    assert!((SECOND * 8..=SECOND * 10).contains(&waited), "{waited:?}: within the jitter and `max_wait`");

    let strict = layer.max_wait(SECOND * 7).layer(server.clone());
    let started = clock.now();
    assert!(
        call_backoff(&strict, "http://a.test/").await.is_some(),
        "longer than `max_wait`, so it fails immediately"
    );
    assert_eq!(clock.now(), started);
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn cancelled_call_is_not_sent() {
    let server = HeaderServer::responding(429, "retry-after", "8");
    let (layer, manual_clock) = layer();
    let client = layer.max_wait(SECOND * 10).layer(server.clone());
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);

    let mut waiting = Box::pin(client.send(request_to("http://a.test/")));
    assert!(is_pending(&mut waiting).await);
    drop(waiting);
    manual_clock.advance(SECOND * 10);
    tokio::task::yield_now().await;
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn waiting_call_follows_clock() {
    let server = HeaderServer::responding(429, "retry-after", "8");
    let (layer, manual_clock) = layer();
    let client = layer.max_wait(SECOND * 10).layer(server.clone());
    assert_eq!(call_backoff(&client, "http://a.test/").await, None);

    let mut waiting = Box::pin(client.send(request_to("http://a.test/")));
    manual_clock.advance(SECOND * 8 - Duration::from_micros(1));
    assert!(is_pending(&mut waiting).await);
    let waiting = tokio::spawn(send_and_wait(client.clone()));
    tokio::task::yield_now().await;
    manual_clock.advance(Duration::from_micros(1));
    waiting.await.unwrap();
    assert_eq!(server.calls(), 2);
}

async fn send_and_wait(client: RetryAfterService<HeaderServer>) {
    client.send(request_to("http://a.test/")).await.unwrap();
}

#[tokio::test]
async fn rule_counts_each_server_separately() {
    let (clock, manual_clock) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock.clone())).unwrap();
    let rule = rules.declare(RuleConfig::new("outbound").quota("2/s").unwrap()).unwrap();
    let server = HeaderServer { status: 200, headers: Vec::new(), calls: Arc::default() };
    let client = RetryAfterLayer::new().clock(clock).rule(rule).layer(server.clone());

    for uri in ["http://a.test/", "http://a.test/", "http://b.test/"] {
        assert!(client.send(request_to(uri)).await.is_ok());
    }
    let error = client.send(request_to("http://a.test/")).await.unwrap_err();
    assert!(matches!(&error, RetryAfterError::Limited(limited) if limited.rule() == "outbound"), "{error}");
    assert_eq!(error.retry_after(), Some(SECOND / 2));
    manual_clock.advance(SECOND / 2);
    assert!(client.send(request_to("http://a.test/")).await.is_ok());
    assert_eq!(server.calls(), 4);
}

#[tokio::test]
async fn custom_key_is_counted() {
    let (layer, _manual_clock) = layer();
    let by_account = layer.key(|request| {
        request.headers().get("account").and_then(|account| account.to_str().ok()).map(str::to_owned)
    });
    let client = by_account.layer(HeaderServer::responding(429, "retry-after", "30"));
    let of =
        |account: &str| Request::builder().uri("http://a.test/").header("account", account).body(()).unwrap();
    assert!(client.send(of("one")).await.is_ok());
    assert!(client.send(of("two")).await.is_ok());
    assert!(matches!(client.send(of("one")).await, Err(RetryAfterError::Backoff(_))));
}

proptest! {
    /// Arbitrary header bytes never cause a longer backoff than configured.
    #[test]
    fn arbitrary_headers_never_exceed_max_backoff(
        retry in prop_oneof![
            any::<Vec<u8>>(),
            any::<u64>().prop_map(|seconds| seconds.to_string().into_bytes()),
        ],
        left in prop_oneof![
            any::<Vec<u8>>(),
            any::<(u64, u64)>().prop_map(|(r, t)| format!("\"a\";r={};t={t}", r % 2).into_bytes()),
        ],
    ) {
        let values = [("retry-after", retry), ("ratelimit", left)];
        let headers: Vec<_> = values
            .into_iter()
            .filter_map(|(name, value)| Some((name, http::HeaderValue::from_bytes(&value).ok()?)))
            .collect();
        let answer = move |_: Request<()>| {
            let mut answer = Response::new(());
            *answer.status_mut() = http::StatusCode::SERVICE_UNAVAILABLE;
            answer.headers_mut().extend(headers.iter().map(|(name, value)| (http::HeaderName::from_static(name), value.clone())));
            ready(Ok::<_, Infallible>(answer))
        };
        let (layer, _manual_clock) = layer();
        let client = layer.max_backoff(SECOND * 9).layer(tower::service_fn(answer));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            client.send(request_to("http://a.test/")).await.unwrap();
            if let Err(error) = client.send(request_to("http://a.test/")).await {
                assert!(error.retry_after().unwrap() <= SECOND * 9, "{error}");
            }
        });
    }
}

/// Polls once, and returns whether the future is pending.
async fn is_pending<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
