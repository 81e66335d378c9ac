//! Rules that wait instead of rejecting at once.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use std::time::Duration;
use tidegate_limiter::Clock;
use tidegate_rule::{Mode, Rule, RuleConfig, RuleSettings, Rules, Settings};
use tokio::time::Instant;

fn settings() -> Settings {
    Settings::new().clock(Clock::tokio())
}

fn rules() -> Rules {
    let rules = Rules::new();
    rules.apply(settings()).unwrap();
    rules
}

fn rule_config(quota: &str, wait: u64) -> RuleConfig {
    RuleConfig::new("rule").quota(quota).unwrap().wait(Duration::from_millis(wait))
}

/// The duration of an admitted call in milliseconds of tokio's time; `None` if it was rejected.
#[allow(clippy::disallowed_methods, reason = "the test measures how long a call waits")]
async fn wait_millis(rule: &Rule) -> Option<u128> {
    let started = Instant::now();
    let admitted = rule.admit("alice", 1).await;
    admitted.ok().map(|()| started.elapsed().as_millis())
}

#[tokio::test(start_paused = true)]
async fn call_waits_up_to_rule_wait() {
    let rules = rules();
    let rule = rules.declare(rule_config("10/s burst 1", 150)).unwrap();
    assert_eq!(wait_millis(&rule).await, Some(0));
    assert_eq!(wait_millis(&rule).await, Some(100));
    // Two more at once: the second would exceed its wait, and is rejected without waiting.
    let (first, second) = tokio::join!(wait_millis(&rule), wait_millis(&rule));
    assert_eq!((first, second), (Some(100), None));

    // Calls do not wait in shadow mode, and settings may change the wait.
    rules.apply(settings().mode(Mode::Shadow)).unwrap();
    assert_eq!(wait_millis(&rule).await, Some(0));
    rules.apply(settings().rule("rule", RuleSettings::new().wait(Duration::ZERO))).unwrap();
    assert_eq!(wait_millis(&rule).await, None);
    rules.apply(settings().rule("rule", RuleSettings::new().wait(Duration::from_secs(1)))).unwrap();
    assert_eq!(wait_millis(&rule).await, Some(100));
}

#[tokio::test(start_paused = true)]
async fn slot_waiters_queue_in_order() {
    let rules = rules();
    let rule = rules.declare(rule_config("1 at once", 150)).unwrap();
    let first = rule.acquire("alice").await.unwrap();
    let waiters = [rule.clone(), rule.clone()]
        .map(|rule| tokio::spawn(async move { rule.acquire("alice").await.is_ok() }));
    tokio::time::sleep(Duration::from_millis(100)).await;
    drop(first);
    let [second, third] = waiters;
    // The second releases its slot at once to the third.
    assert!(second.await.unwrap() && third.await.unwrap());
    let _permit = rule.acquire("alice").await.unwrap();
    let limited = rule.acquire("alice").await.unwrap_err();
    assert_eq!((limited.rule(), limited.decision().is_none()), ("rule", true), "{limited}");
}

/// A cancelled call charges nothing.
#[tokio::test(start_paused = true)]
async fn cancelled_call_charges_nothing() {
    let rules = rules();
    let rule = rules.declare(rule_config("10/s burst 1", 1_000)).unwrap();
    assert_eq!(wait_millis(&rule).await, Some(0));
    for _ in 0..5 {
        let cancelled = tokio::time::timeout(Duration::from_millis(10), rule.admit("alice", 1));
        assert!(cancelled.await.is_err());
    }
    assert_eq!(wait_millis(&rule).await, Some(50));
}

/// A hundred tasks compete for ten tokens at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_tasks_stay_within_quota() {
    let rules = Rules::new();
    let rule = rules.declare(RuleConfig::new("rule").quota("10 per 52w").unwrap()).unwrap();
    let calls = (0..100).map(|_| {
        let rule = rule.clone();
        tokio::spawn(async move { rule.admit("all", 1).await.is_ok() })
    });
    let mut admitted = 0;
    for call in calls.collect::<Vec<_>>() {
        admitted += usize::from(call.await.unwrap());
    }
    assert_eq!(admitted, 10);
}
