//! What the tests of the store share.

#![allow(dead_code, reason = "not every test needs all of it")]

use std::time::Duration;
use tidegate_core::{Decision, Outcome, Retry};
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisServer, RespValue};

/// Where time is not the point.
pub(crate) const LONG_DEADLINE: Duration = Duration::from_secs(5);

/// So slow that nothing comes back while a test runs.
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

/// Asks again and again until the answer is yes, for some twenty seconds at most.
pub(crate) async fn poll_until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    for _ in 0..4_000 {
        if ask().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("waited in vain until {what}");
}

/// A decision without the times in it, which no two clocks agree on.
pub(crate) fn summarize(decision: &Decision) -> String {
    let verb = match decision.outcome() {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(Retry::After(_)) => "deny",
        Outcome::Deny(Retry::Never) => "never",
        Outcome::Deny(Retry::WhenReleased) => "full",
    };
    let degraded = if decision.is_degraded() { " degraded" } else { "" };
    format!("{verb} {} of {}{degraded}", decision.remaining(), decision.limit())
}

/// The names of all keys in a server that match.
pub(crate) fn matching_keys(server: &RedisServer, pattern: &str) -> Vec<String> {
    let keys = server.command(&["KEYS", pattern]).unwrap();
    let mut keys: Vec<_> = keys.items().iter().filter_map(RespValue::text).map(str::to_owned).collect();
    keys.sort();
    keys
}

/// A number that a server answers with.
pub(crate) fn integer_reply(server: &RedisServer, words: &[&str]) -> i64 {
    server.command(words).unwrap().integer().unwrap()
}

/// How often a server was told to run a command, from scripts too.
pub(crate) fn count_calls(server: &RedisServer, name: &str) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap();
    let line = format!("cmdstat_{name}:calls=");
    let rest = info.text().unwrap().lines().find_map(|info| info.strip_prefix(&line)).unwrap_or("0,");
    rest.split(',').next().unwrap().parse().unwrap()
}
