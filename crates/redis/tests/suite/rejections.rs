//! A reachable server that rejects commands: the failure mode decides, and the decisions are marked as degraded.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print their progress"
)]

use crate::common::{
    FIVE_PER_YEAR, build_limiter, build_limiter_with, connect_store, count_calls, integer_reply,
    matching_keys, poll_until, summarize,
};
use std::{fmt::Write as _, fs, thread, time::Duration};
use tidegate_core::Quota;
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisServer, wait_until};

/// A limiter with the same quota for each failure mode.
struct LimitersByMode {
    open: Limiter,
    closed: Limiter,
    local: Limiter,
}

impl LimitersByMode {
    fn new(store: &RedisStore) -> Self {
        let limiter = |outage| build_limiter_with(store, "modes", FIVE_PER_YEAR, outage);
        Self {
            open: limiter(FailureMode::Open),
            closed: limiter(FailureMode::Closed),
            local: limiter(FailureMode::Local { nodes: 2 }),
        }
    }

    /// Asserts that the failure modes decide, without the store.
    async fn assert_degraded(&self, key: &str) {
        for _ in 0..3 {
            let decision = self.open.decide(key, 1).await;
            assert!(decision.is_degraded() && decision.is_allowed(), "{decision:?}");
            let decision = self.closed.decide(key, 1).await;
            assert!(decision.is_degraded() && !decision.is_granted(), "{decision:?}");
        }
        assert!(!self.closed.key(key).reserve(1, Duration::from_secs(1)).await.decision().is_granted());
        assert_eq!(self.closed.key(key).take_up_to(3).await.0, 0);
        assert!(!self.closed.key(key).check_with_overdraft(1).await.is_granted());
        let mut allowed = 0;
        for _ in 0..4 {
            let decision = self.local.decide(key, 1).await;
            assert!(decision.is_degraded());
            allowed += u32::from(decision.is_allowed());
        }
        assert_eq!(allowed, 2, "half of five");
        assert!(
            self.open.degraded_count() >= 3
                && self.closed.degraded_count() >= 3
                && self.local.degraded_count() >= 4
        );
    }

    /// Asserts that the store decides for all limiters.
    async fn assert_decided(&self, key: &str) {
        for (limiter, left) in [(&self.open, 4), (&self.closed, 3), (&self.local, 2)] {
            assert_eq!(summarize(&limiter.decide(key, 1).await), format!("allow {left} of 5"));
        }
    }
}

#[tokio::test]
async fn full_memory_degrades_decisions() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    modes.assert_decided("before").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    modes.assert_degraded("a").await;
    // For a new limiter, the announcement of its quota fails.
    let new = build_limiter_with(&store, "new", FIVE_PER_YEAR, FailureMode::Closed);
    assert!(new.decide("a", 1).await.is_degraded());
    let error = store.last_error().unwrap();
    assert!(error.contains("maxmemory"), "{error}");

    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    modes.assert_decided("a").await;
    assert_eq!((store.last_error(), store.outages()), (None, 0));
}

/// If some keys of a batch cannot be written, requests without a write are still decided.
#[tokio::test]
async fn full_memory_rejects_only_writes() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for (name, quota) in [("short", "5/min"), ("whole", "5/min sliding-window")] {
        let limiter = build_limiter_with(&store, name, quota, FailureMode::Closed);
        for _ in 0..5 {
            assert!(limiter.decide("spent", 1).await.is_allowed());
        }
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let (new, spent, other) =
            tokio::join!(limiter.decide("new", 1), limiter.decide("spent", 1), limiter.decide("other", 1));
        assert!(new.is_degraded() && other.is_degraded(), "{quota}: {new:?} {other:?}");
        assert!(!spent.is_degraded() && !spent.is_allowed(), "{quota}: {spent:?}");
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
        assert_eq!(summarize(&limiter.decide("new", 1).await), "allow 4 of 5", "{quota}");
    }
}

#[tokio::test]
async fn failed_snapshot_degrades_decisions() {
    let server = RedisServer::builder().config("save", "3600 1000000").start().unwrap();
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    fs::create_dir(server.directory().join("dump.rdb")).unwrap();
    server.command(&["BGSAVE"]).unwrap();
    wait_until("the snapshot fails", || match server.command(&["INFO", "persistence"])?.text() {
        Some(text) if text.contains("rdb_last_bgsave_status:err") => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    modes.assert_degraded("a").await;
    let error = store.last_error().unwrap();
    assert!(error.contains("MISCONF"), "{error}");
    server.command(&["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]).unwrap();
    modes.assert_decided("a").await;
}

#[tokio::test]
async fn wrong_type_key_degrades_only_itself() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    modes.assert_decided("good").await;
    server.command(&["LPUSH", "tidegate:{modes:a}:1", "not", "ours"]).unwrap();
    modes.assert_degraded("a").await;
    // In a batch, it is the only key that is degraded.
    let limiter = std::sync::Arc::new(build_limiter(&store, "batch", "100 per 52w"));
    server.command(&["LPUSH", "tidegate:{batch:7}:1", "not", "ours"]).unwrap();
    let call = |index: u32| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.decide(&index.to_string(), 1).await.is_degraded() })
    };
    let calls: Vec<_> = (0..50).map(call).collect();
    for (index, calls) in calls.into_iter().enumerate() {
        assert_eq!(calls.await.unwrap(), index == 7);
    }
    assert!(modes.closed.key("a").reset().await.is_err());
    server.command(&["DEL", "tidegate:{modes:a}:1"]).unwrap();
    modes.assert_decided("a").await;
}

/// Bytes that another program wrote are not a state: decisions treat the key as new or return an error.
#[tokio::test]
async fn corrupt_key_is_answered_and_reset() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let quotas = [
        "5 per 52w",
        "5MB/s",
        "5 per 52w leaky-bucket queue 4 nodelay",
        "5 per 52w fixed-window from-first-hit",
        "5 per 52w sliding-window",
        "5 per 52w sliding-strict 4",
        "5 per 52w sliding-log",
        "5 per 52w smooth burst 4",
        "5 per 52w warm-up 4s cold 3",
        "5 at once lease 30s",
    ];
    for (index, quota) in quotas.into_iter().enumerate() {
        let name = format!("garbage-{index}");
        let limiter = build_limiter_with(&store, &name, quota, FailureMode::Closed);
        let tag = quota.parse::<Quota>().unwrap().tag().to_be_bytes();
        limiter.decide("fresh", 1).await;
        let unused = summarize(&limiter.key("unused").peek(1).await);
        let key = format!("tidegate:{{{name}:a}}:1");
        for bytes in corrupt_values(tag) {
            write_raw(&server, &key, &bytes);
            // No operation panics or hangs.
            limiter.key("a").peek(1).await;
            limiter.decide("a", 1).await;
            limiter.key("a").take_up_to(3).await;
            drop(limiter.key("a").permit().await);
            limiter.key("a").reserve(1, Duration::from_secs(1)).await.cancel().await;
            limiter.key("a").reserve(1, Duration::from_secs(1)).await.commit(2).await;
            // An operator can repair the key with a reset.
            write_raw(&server, &key, &bytes);
            limiter.key("a").reset().await.unwrap_or_else(|error| panic!("{quota} {bytes:02x?}: {error}"));
            if !quota.contains("at once") {
                assert_eq!(summarize(&limiter.key("a").peek(1).await), unused, "{quota} {bytes:02x?}");
            }
            let granted = limiter.decide("b", 1).await;
            assert!(!granted.is_degraded(), "{quota} {bytes:02x?}");
            limiter.key("b").reset().await.unwrap();
            server.command(&["DEL", &key]).unwrap();
        }
    }
}

/// Values of many lengths, some with a valid header.
fn corrupt_values(tag: [u8; 2]) -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    for length in [0, 1, 2, 3, 5, 8, 9, 10, 11, 12, 16, 17, 24, 40, 64, 300] {
        for byte in [0x00, 0x01, 0x41, 0x7f, 0x80, 0xff] {
            all.push(vec![byte; length]);
            let mut tagged = vec![0, tag[0], tag[1]];
            tagged.resize(3 + length, byte);
            tagged[0] = if byte == 0x41 { 9 } else { 0 };
            all.push(tagged);
        }
    }
    all
}

fn write_raw(server: &RedisServer, key: &str, bytes: &[u8]) {
    let mut text = String::new();
    bytes.iter().for_each(|byte| write!(text, "\\{byte:03}").unwrap());
    server.command(&["EVAL", &format!("redis.call('SET', KEYS[1], '{text}')"), "1", key]).unwrap();
    assert_eq!(integer_reply(server, &["STRLEN", key]), i64::try_from(bytes.len()).unwrap());
}

#[tokio::test]
async fn busy_server_degrades_decisions() {
    let server = RedisServer::builder().config("lua-time-limit", "20").start().unwrap();
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    modes.assert_decided("before").await;
    let mut other = server.connect().unwrap();
    let script = thread::spawn(move || other.command(&["EVAL", "while true do end", "0"]));
    poll_until("the server is busy", async || modes.closed.key("a").peek(1).await.is_degraded()).await;
    modes.assert_degraded("a").await;
    let error = store.last_error().unwrap();
    assert!(error.contains("BUSY") || error.contains("busy"), "{error}");

    server.command(&["SCRIPT", "KILL"]).unwrap();
    assert!(script.join().unwrap().is_err());
    poll_until("the store decides", async || !modes.closed.key("a").peek(1).await.is_degraded()).await;
    modes.assert_decided("a").await;
}

#[tokio::test]
async fn demoted_server_degrades_decisions() {
    let (server, other) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    modes.assert_decided("before").await;
    server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]).unwrap();
    modes.assert_degraded("a").await;
    let error = store.last_error().unwrap();
    assert!(error.contains("READONLY") || error.contains("read only"), "{error}");
    // The store stays unavailable while the server is a replica.
    let before = count_calls(&server, "evalsha");
    poll_until("the store has probed again", async || count_calls(&server, "evalsha") >= before + 4).await;
    assert_eq!(store.outages(), 1);
    assert!(matching_keys(&other, "*").is_empty());

    server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
    poll_until("the store decides", async || !modes.closed.key("a").peek(1).await.is_degraded()).await;
    modes.assert_decided("a").await;
    assert_eq!(store.last_error(), None);
}

#[tokio::test]
async fn revoked_permissions_degrade_decisions() {
    let server = RedisServer::builder().user("app", "secret", "~* +@all").start().unwrap();
    let store = connect_store(&server.url()).await;
    let modes = LimitersByMode::new(&store);
    modes.assert_decided("before").await;
    server.command(&["ACL", "SETUSER", "app", "-@scripting"]).unwrap();
    modes.assert_degraded("a").await;
    server.command(&["ACL", "SETUSER", "app", "+@scripting", "-time"]).unwrap();
    modes.assert_degraded("b").await;
    server.command(&["ACL", "SETUSER", "app", "+time", "-psetex"]).unwrap();
    modes.assert_degraded("c").await;
    server.command(&["ACL", "SETUSER", "app", "+psetex"]).unwrap();
    poll_until("the store decides", async || !modes.closed.key("a").peek(1).await.is_degraded()).await;
    modes.assert_decided("a").await;
}
