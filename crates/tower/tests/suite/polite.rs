//! A client that does as servers say: what it waits for, for how long, and what it forgets.

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
use tidegate_rule::{Declaration, Rules, Settings};
use tidegate_tower::{Polite, PoliteError, PoliteLayer};
use tower::{Layer as _, Service};

const SECOND: Duration = Duration::from_secs(1);

/// Answers each call with the same headers, and counts.
#[derive(Clone, Debug)]
struct Server {
    status: u16,
    headers: Vec<(&'static str, String)>,
    calls: Arc<AtomicUsize>,
}

impl Server {
    fn saying(status: u16, name: &'static str, value: impl Into<String>) -> Self {
        Self { status, headers: vec![(name, value.into())], calls: Arc::default() }
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl Service<Request<()>> for Server {
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

fn to(uri: &str) -> Request<()> {
    Request::builder().uri(uri).body(()).unwrap()
}

fn layer() -> (PoliteLayer, ManualClock) {
    let (clock, hand) = Clock::manual();
    (PoliteLayer::new().clock(clock), hand)
}

/// How long the call would have to wait; `None` if it was made.
async fn told(client: &Polite<Server>, uri: &str) -> Option<Duration> {
    match client.send(to(uri)).await {
        Ok(_) => None,
        Err(PoliteError::ToldToWait { wait, .. }) => Some(wait),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_server_that_said_when_is_not_called_before() {
    let server = Server::saying(429, "retry-after", "30");
    let (layer, hand) = layer();
    let client = layer.layer(server.clone());

    assert_eq!(told(&client, "http://a.test/").await, None);
    assert_eq!(told(&client, "http://a.test/").await, Some(SECOND * 30));
    assert_eq!(told(&client, "http://b.test/").await, None, "another server said nothing yet");
    assert_eq!(told(&client, "http://A.TEST:80/other").await, Some(SECOND * 30), "the same server");
    assert_eq!(told(&client, "http://a.test:81/").await, None, "another port is another server");

    hand.advance(SECOND * 30 - Duration::from_micros(1));
    assert!(told(&client, "http://a.test/").await.is_some());
    hand.advance(Duration::from_micros(1));
    assert_eq!(told(&client, "http://a.test/").await, None);
    assert_eq!(server.calls(), 4);
}

#[tokio::test]
async fn an_answer_with_nothing_left_counts_whatever_its_status() {
    let (layer, hand) = layer();
    let client = layer.layer(Server::saying(200, "ratelimit", r#""api";r=0;t=4"#));
    assert_eq!(told(&client, "http://a.test/").await, None);
    assert_eq!(told(&client, "http://a.test/").await, Some(SECOND * 4));
    hand.advance(SECOND * 4);
    assert_eq!(told(&client, "http://a.test/").await, None);
}

#[tokio::test]
async fn no_server_is_obeyed_for_longer_than_declared() {
    for words in ["18446744073709551616", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let (layer, hand) = layer();
        let client = layer.obey_for(SECOND * 60).layer(Server::saying(503, "retry-after", words));
        assert_eq!(told(&client, "http://a.test/").await, None);
        assert_eq!(told(&client, "http://a.test/").await, Some(SECOND * 60));
        hand.advance(SECOND * 60);
        assert_eq!(told(&client, "http://a.test/").await, None);
    }
}

#[tokio::test]
async fn malformed_words_are_no_words() {
    let (layer, _hand) = layer();
    let client = layer.clone().layer(Server::saying(429, "retry-after", "in a while"));
    for _ in 0..3 {
        assert_eq!(told(&client, "http://a.test/").await, None);
    }
    assert_eq!(layer.remembered(), 0);
}

#[tokio::test]
async fn so_many_servers_are_remembered_and_no_more() {
    let (layer, _hand) = layer();
    let layer = layer.remember(10);
    let client = layer.layer(Server::saying(429, "retry-after", "30"));
    for host in 0..1_000 {
        assert_eq!(told(&client, &format!("http://h{host}.test/")).await, None);
    }
    assert_eq!(layer.remembered(), 10);
}

#[tokio::test]
async fn clones_and_siblings_know_what_one_was_told() {
    let server = Server::saying(429, "retry-after", "30");
    let (layer, _hand) = layer();
    let (client, sibling) = (layer.layer(server.clone()), layer.clone().layer(server));
    assert_eq!(told(&client, "http://a.test/").await, None);
    assert!(told(&client.clone(), "http://a.test/").await.is_some());
    assert!(told(&sibling, "http://a.test/").await.is_some());
    layer.forgive("a.test");
    assert_eq!(told(&sibling, "http://a.test/").await, None);
}

#[tokio::test(start_paused = true)]
async fn calls_wait_for_the_moment_that_the_server_named() {
    let clock = Clock::tokio();
    let layer = PoliteLayer::new().clock(clock.clone()).wait(SECOND * 10).spread(SECOND * 60);
    let server = Server::saying(429, "retry-after", "8");
    let client = layer.layer(server.clone());
    assert_eq!(told(&client, "http://a.test/").await, None);

    let asked = clock.now();
    assert_eq!(told(&client, "http://a.test/").await, None);
    let waited = clock.now().since(asked).to_duration();
    assert!((SECOND * 8..=SECOND * 10).contains(&waited), "{waited:?}: spread, and never past the patience");

    let late = layer.wait(SECOND * 7).layer(server.clone());
    let asked = clock.now();
    assert!(told(&late, "http://a.test/").await.is_some(), "too long, and said so at once");
    assert_eq!(clock.now(), asked);
    assert_eq!(server.calls(), 2);
}

#[tokio::test]
async fn a_call_that_is_given_up_is_not_made() {
    let server = Server::saying(429, "retry-after", "8");
    let (layer, hand) = layer();
    let client = layer.wait(SECOND * 10).layer(server.clone());
    assert_eq!(told(&client, "http://a.test/").await, None);

    let mut waiting = Box::pin(client.send(to("http://a.test/")));
    assert!(futures_pending(&mut waiting).await);
    drop(waiting);
    hand.advance(SECOND * 10);
    tokio::task::yield_now().await;
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn whoever_waits_goes_when_the_clock_says_so() {
    let server = Server::saying(429, "retry-after", "8");
    let (layer, hand) = layer();
    let client = layer.wait(SECOND * 10).layer(server.clone());
    assert_eq!(told(&client, "http://a.test/").await, None);

    let mut waiting = Box::pin(client.send(to("http://a.test/")));
    hand.advance(SECOND * 8 - Duration::from_micros(1));
    assert!(futures_pending(&mut waiting).await);
    let waiting = tokio::spawn(waiting_for(client.clone()));
    tokio::task::yield_now().await;
    hand.advance(Duration::from_micros(1));
    waiting.await.unwrap();
    assert_eq!(server.calls(), 2);
}

async fn waiting_for(client: Polite<Server>) {
    client.send(to("http://a.test/")).await.unwrap();
}

#[tokio::test]
async fn its_own_rule_counts_each_server_apart() {
    let (clock, hand) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock.clone())).unwrap();
    let rule = rules.rule(Declaration::of("outbound").quota("2/s").unwrap()).unwrap();
    let server = Server { status: 200, headers: Vec::new(), calls: Arc::default() };
    let client = PoliteLayer::new().clock(clock).rule(rule).layer(server.clone());

    for uri in ["http://a.test/", "http://a.test/", "http://b.test/"] {
        assert!(client.send(to(uri)).await.is_ok());
    }
    let error = client.send(to("http://a.test/")).await.unwrap_err();
    assert!(matches!(&error, PoliteError::Limited(limited) if limited.rule() == "outbound"), "{error}");
    assert_eq!(error.retry_after(), Some(SECOND / 2));
    hand.advance(SECOND / 2);
    assert!(client.send(to("http://a.test/")).await.is_ok());
    assert_eq!(server.calls(), 4);
}

#[tokio::test]
async fn a_name_of_your_own_is_what_is_counted() {
    let (layer, _hand) = layer();
    let by_account = layer.key(|request| {
        request.headers().get("account").and_then(|account| account.to_str().ok()).map(str::to_owned)
    });
    let client = by_account.layer(Server::saying(429, "retry-after", "30"));
    let of =
        |account: &str| Request::builder().uri("http://a.test/").header("account", account).body(()).unwrap();
    assert!(client.send(of("one")).await.is_ok());
    assert!(client.send(of("two")).await.is_ok());
    assert!(matches!(client.send(of("one")).await, Err(PoliteError::ToldToWait { .. })));
}

proptest! {
    /// Whatever a server says, in whatever bytes, nobody waits for longer than was declared.
    #[test]
    fn no_words_make_anybody_wait_longer(
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
        let (layer, _hand) = layer();
        let client = layer.obey_for(SECOND * 9).layer(tower::service_fn(answer));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            client.send(to("http://a.test/")).await.unwrap();
            if let Err(error) = client.send(to("http://a.test/")).await {
                assert!(error.retry_after().unwrap() <= SECOND * 9, "{error}");
            }
        });
    }
}

/// Polls once, and says whether there is more to wait for.
async fn futures_pending<F: Future>(future: &mut std::pin::Pin<Box<F>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_pending())).await
}
