//! The log events of the store: one event with cause and advice per problem, and none per request.

#![cfg(target_os = "linux")]

use crate::common::{FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, build_limiter_with, poll_until, summarize};
use std::{
    fmt::{self, Write as _},
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_limiter::FailureMode;
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisCluster, RedisServer};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
    subscriber::{DefaultGuard, set_default},
};

/// The events logged on this thread since `start`.
struct CapturedLog {
    lines: Arc<Mutex<Vec<String>>>,
    _guard: DefaultGuard,
}

impl CapturedLog {
    fn start() -> Self {
        let lines = Arc::<Mutex<Vec<String>>>::default();
        Self { _guard: set_default(LogSubscriber(lines.clone())), lines }
    }

    fn lines(&self) -> Vec<String> {
        self.lines.lock().unwrap().clone()
    }

    fn count(&self, part: &str) -> usize {
        self.lines().iter().filter(|line| line.contains(part)).count()
    }
}

struct LogSubscriber(Arc<Mutex<Vec<String>>>);

struct EventFormatter(String);

impl Visit for EventFormatter {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = write!(self.0, "{field}={value:?} ");
    }
}

impl Subscriber for LogSubscriber {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate")
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = EventFormatter(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test]
async fn healthy_start_logs_nothing() {
    let server = RedisServer::start().unwrap();
    let cluster = tokio::task::spawn_blocking(|| RedisCluster::start().unwrap()).await.unwrap();
    let nodes: Vec<_> = cluster.nodes().iter().map(|node| node.address().to_string()).collect();
    for url in [server.url(), format!("redis+cluster://{}", nodes.join(","))] {
        let log = CapturedLog::start();
        let store = RedisStore::builder().deadline(LONG_DEADLINE).open(&url).unwrap();
        let limiter = build_limiter(&store, "healthy", FIVE_PER_YEAR);
        assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 4 of 5", "{url}");
        assert_eq!(log.lines(), [""; 0], "{url}");
    }
}

/// Asserts that there is one event, regardless of the number of requests and connection attempts.
async fn assert_logged_once(url: &str, cause: &str, advice: &str) {
    let log = CapturedLog::start();
    let store = RedisStore::builder().deadline(LONG_DEADLINE).open(url).unwrap();
    let limiter = build_limiter_with(&store, "wrong", FIVE_PER_YEAR, FailureMode::Closed);
    for _ in 0..20 {
        assert!(limiter.decide("a", 1).await.is_degraded());
    }
    poll_until("the store has retried", async || {
        store.last_error().is_some_and(|error| error.contains(cause))
    })
    .await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let assert_part = |part: &str| assert!(lines[0].contains(part), "no {part:?} in {}", lines[0]);
    ["message=store unavailable", "store=", "cause=", "mode=closed", cause, advice]
        .into_iter()
        .for_each(assert_part);
    assert!(!lines[0].contains("wr0ng"), "{}", lines[0]);
}

#[tokio::test]
async fn misconfigured_store_logs_its_cause_and_advice_once() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let address = server.address();
    assert_logged_once(
        &format!("redis://:wr0ng@{address}"),
        "authentication failed",
        "check user and password",
    )
    .await;
    assert_logged_once(&format!("redis://{address}"), "NOAUTH", "check user and password").await;
    assert_logged_once(&format!("redis://:right@{address}/999"), "DB index", "check the database number")
        .await;
    assert_logged_once(
        &format!("rediss://:right@{address}"),
        "cannot connect to",
        "a rediss:// address needs a server that uses TLS",
    )
    .await;

    let plain = RedisServer::start().unwrap();
    let cluster_url = format!("redis+cluster://{}", plain.address());
    assert_logged_once(&cluster_url, "is a single server", "use redis:// instead of redis+cluster://").await;
    assert_logged_once("redis://no-such-host.invalid:6379", "cannot connect to", "check the host name").await;
    plain.command(&["ACL", "SETUSER", "poor", "on", ">wr0ng", "~*", "+get", "+info", "+ping"]).unwrap();
    assert_logged_once(&format!("redis://poor:wr0ng@{}", plain.address()), "NoPerm", "grant the user").await;
    let primary = server.port().to_string();
    plain.command(&["CONFIG", "SET", "masterauth", "right"]).unwrap();
    plain.command(&["REPLICAOF", "127.0.0.1", &primary]).unwrap();
    assert_logged_once(&plain.url(), "is a read-only replica", "connect to its primary").await;

    let cluster = tokio::task::spawn_blocking(|| RedisCluster::start().unwrap()).await.unwrap();
    let node = cluster.nodes()[0].url();
    assert_logged_once(&node, "is a node of a cluster", "use redis+cluster:// instead of redis://").await;
}

#[tokio::test]
async fn outage_logs_its_start_and_its_end() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(LONG_DEADLINE).connect(&server.url()).await.unwrap();
    let limiter = build_limiter(&store, "outage", FIVE_PER_YEAR);
    assert!(!limiter.decide("a", 1).await.is_degraded());
    let log = CapturedLog::start();
    server.kill();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    for _ in 0..100 {
        assert!(limiter.decide("a", 1).await.is_degraded());
    }
    server.restart().unwrap();
    poll_until("the store is available", async || store.last_error().is_none()).await;
    assert_eq!(log.count("message=store available again"), 1, "{:#?}", log.lines());
    assert_eq!(log.count("message=store unavailable"), 1, "{:#?}", log.lines());
    assert_eq!(log.count("mode=local"), 1, "{:#?}", log.lines());
}

#[tokio::test]
async fn cause_that_changes_is_logged_again() {
    let server = RedisServer::start().unwrap();
    let log = CapturedLog::start();
    server.kill();
    let url = format!("redis://:wr0ng@{}", server.address());
    let store = RedisStore::builder().deadline(LONG_DEADLINE).open(&url).unwrap();
    poll_until("the connection is refused", async || {
        store.last_error().is_some_and(|error| error.contains("refused"))
    })
    .await;
    server.restart().unwrap();
    poll_until("the missing password is logged", async || log.count("check user and password") == 1).await;
    assert_eq!(log.count("message=store unavailable"), 2, "{:#?}", log.lines());
}

#[tokio::test]
async fn wrong_type_names_the_key_and_does_not_flood_the_log() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(LONG_DEADLINE).connect(&server.url()).await.unwrap();
    for (rule, quota) in [("short", FIVE_PER_YEAR), ("long", "5 per 52w sliding-log")] {
        let limiter = build_limiter_with(&store, rule, quota, FailureMode::Closed);
        assert!(limiter.decide("b", 1).await.is_granted());
        let key = format!("tidegate:{{{rule}:a}}:1");
        server.command(&["LPUSH", &key, "not ours"]).unwrap();
        let log = CapturedLog::start();
        for _ in 0..100 {
            assert!(limiter.decide("a", 1).await.is_degraded());
            limiter.decide("b", 1).await;
        }
        let lines = log.lines();
        match rule {
            "short" => {
                assert_eq!(lines.len(), 1, "{lines:#?}");
                let assert_part =
                    |part: &str| assert!(lines[0].contains(part), "no {part:?} in {}", lines[0]);
                ["message=store rejects decisions", "WRONGTYPE", &key, "advice="]
                    .into_iter()
                    .for_each(assert_part);
            }
            // The same cause within the same minute.
            _ => assert_eq!(lines, [""; 0]),
        }
        let decision = limiter.decide("a", 1).await;
        assert!(decision.is_degraded());
        assert!(store.last_error().unwrap().contains(&key), "{:?}", store.last_error());
    }
}

#[tokio::test]
async fn store_that_relapses_does_not_flood_the_log() {
    let server = RedisServer::start().unwrap();
    let store =
        RedisStore::builder().deadline(Duration::from_millis(300)).connect(&server.url()).await.unwrap();
    let limiter = build_limiter(&store, "relapse", FIVE_PER_YEAR);
    let log = CapturedLog::start();
    for times in 1..=4 {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
        poll_until("the outage is detected", async || {
            limiter.key("a").peek(1).await;
            store.outages() == times
        })
        .await;
        poll_until("it is available again", async || store.last_error().is_none()).await;
    }
    assert_eq!(log.count("message=store unavailable"), 4, "{:#?}", log.lines());
    assert_eq!(log.count("message=store available again"), 4, "{:#?}", log.lines());
}
