//! Helpers shared by the tests of the store.

#![allow(dead_code, reason = "not every build uses all helpers")]

use std::time::Duration;
use tidegate_core::{Decision, Outcome, Retry};
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisServer, RespValue};

/// A deadline for tests that do not depend on it.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(5);

/// So slow that no token is refilled while a test runs.
pub(crate) const FIVE_PER_YEAR: &str = "5 per 52w";

pub(crate) async fn connect_store(url: &str) -> RedisStore {
    RedisStore::builder().deadline(LONG_DEADLINE).connect(url).await.unwrap()
}

pub(crate) fn build_limiter(store: &RedisStore, name: &str, quota: &str) -> Limiter {
    Limiter::builder().name(name).store(store.clone()).build(quota).unwrap()
}

pub(crate) fn build_limiter_with(
    store: &RedisStore,
    name: &str,
    quota: &str,
    outage: FailureMode,
) -> Limiter {
    Limiter::builder().name(name).store(store.clone()).failure_mode(outage).build(quota).unwrap()
}

/// Polls a condition until it is true; panics after about twenty seconds.
pub(crate) async fn poll_until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    for _ in 0..4_000 {
        if condition().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("timed out waiting until {what}");
}

/// Formats a decision without its times, which differ between clocks.
pub(crate) fn summarize(decision: &Decision) -> String {
    let outcome = match decision.outcome() {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(Retry::After(_)) => "deny",
        Outcome::Deny(Retry::Never) => "never",
        Outcome::Deny(Retry::WhenReleased) => "full",
    };
    let degraded = if decision.is_degraded() { " degraded" } else { "" };
    format!("{outcome} {} of {}{degraded}", decision.remaining(), decision.limit())
}

/// The names of all matching keys in a server, sorted.
pub(crate) fn matching_keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    let keys = server.command(&["KEYS", pattern]).unwrap();
    let mut keys: Vec<_> = keys.items().iter().filter_map(RespValue::text).map(str::to_owned).collect();
    keys.sort();
    keys
}

/// Sends a command and returns its integer reply.
pub(crate) fn integer_reply(server: &RedisServer, words: &[&str]) -> i64 {
    server.command(words).unwrap().integer().unwrap()
}

/// The number of calls of a command in a server, including those from scripts.
pub(crate) fn count_calls(server: &RedisServer, name: &str) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap();
    let line = format!("cmdstat_{name}:calls=");
    let rest = info.text().unwrap().lines().find_map(|info| info.strip_prefix(&line)).unwrap_or("0,");
    rest.split(',').next().unwrap().parse().unwrap()
}
