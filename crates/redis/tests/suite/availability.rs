//! Missed deadlines and outages: the decision without a reply, the refund of a late reply, and the bound of an outage.

#![cfg(target_os = "linux")]

use crate::common::{
    FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, build_limiter_with, connect_store, integer_reply,
    poll_until, summarize,
};
use std::time::Duration;
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// Longer than any reply of a running server, even on a busy machine.
const DEADLINE: Duration = Duration::from_millis(300);

async fn connect_short_deadline(server: &RedisServer) -> RedisStore {
    RedisStore::builder().deadline(DEADLINE).connect(&server.url()).await.unwrap()
}

/// Loads the script and announces the quota, so that the late reply is a decision.
async fn wait_until_decides(limiter: &Limiter) {
    poll_until("the store decides", async || !limiter.decide("other", 1).await.is_degraded()).await;
}

/// How long the server is paused while a request misses its deadline.
#[derive(Clone, Copy, Debug)]
enum PauseLength {
    /// Until the request has missed its deadline.
    Short,
    /// Until the store counts as unavailable.
    Long,
}

/// Pauses the server until a request misses its deadline, then resumes it.
async fn miss_deadline<T>(
    server: &RedisServer,
    store: &RedisStore,
    pause: PauseLength,
    request: impl Future<Output = T>,
) -> T {
    server.pause().unwrap();
    let result = request.await;
    if let PauseLength::Long = pause {
        poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    }
    server.resume().unwrap();
    result
}

#[tokio::test]
async fn one_missed_deadline_is_not_an_outage() {
    let server = RedisServer::start().unwrap();
    for (mode, expected) in [
        (FailureMode::default(), "deny 0 of 5 degraded"),
        (FailureMode::Closed, "deny 0 of 5 degraded"),
        (FailureMode::Open, "allow"),
    ] {
        let store = connect_short_deadline(&server).await;
        let limiter = build_limiter_with(&store, &format!("{mode:?}"), FIVE_PER_YEAR, mode);
        wait_until_decides(&limiter).await;
        let missed = miss_deadline(&server, &store, PauseLength::Short, limiter.decide("a", 1)).await;
        assert!(missed.is_degraded() && summarize(&missed).starts_with(expected), "{mode:?} {missed:?}");
        poll_until("the store decides", async || !limiter.key("a").peek(1).await.is_degraded()).await;
        assert_eq!((store.last_error(), store.outages()), (None, 0), "{mode:?}");
    }
}

#[tokio::test]
async fn late_slot_is_given_back_long_before_its_lease_ends() {
    let server = RedisServer::start().unwrap();
    for pause in [PauseLength::Short, PauseLength::Long] {
        let store = connect_short_deadline(&server).await;
        let limiter =
            build_limiter_with(&store, &format!("{pause:?}"), "1 at once lease 1h", FailureMode::Closed);
        poll_until("the store decides", async || limiter.key("other").permit().await.decision().is_granted())
            .await;
        let missed = miss_deadline(&server, &store, pause, limiter.key("a").permit()).await;
        assert!(!missed.decision().is_granted() && missed.decision().is_degraded());
        poll_until("the slot is free", async || limiter.key("a").permit().await.decision().is_granted())
            .await;
    }
}

#[tokio::test]
async fn slot_released_during_an_outage_is_given_back_after_it() {
    let server = RedisServer::start().unwrap();
    let store = connect_short_deadline(&server).await;
    let limiter = build_limiter_with(&store, "released", "1 at once lease 1h", FailureMode::Closed);
    poll_until("the store decides", async || limiter.key("other").permit().await.decision().is_granted())
        .await;
    let permit = limiter.key("a").permit().await;
    assert!(permit.decision().is_granted());
    server.pause().unwrap();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    drop(permit);
    tokio::task::yield_now().await;
    server.resume().unwrap();
    poll_until("the slot is free", async || limiter.key("a").permit().await.decision().is_granted()).await;
}

#[tokio::test]
async fn late_tokens_are_given_back() {
    let server = RedisServer::start().unwrap();
    let observer = connect_store(&server.url()).await;
    for pause in [PauseLength::Short, PauseLength::Long] {
        for quota in [FIVE_PER_YEAR, "5 per 52w sliding-log", "5 per 52w fixed-window"] {
            let (name, store) = (format!("{pause:?} {quota}"), connect_short_deadline(&server).await);
            let (ours, observed) = (
                build_limiter_with(&store, &name, quota, FailureMode::Closed),
                build_limiter(&observer, &name, quota),
            );
            wait_until_decides(&ours).await;
            assert!(!miss_deadline(&server, &store, pause, ours.decide("check", 1)).await.is_granted());
            poll_until("the store decides again", async || !ours.key("b").peek(1).await.is_degraded()).await;
            let reserved =
                miss_deadline(&server, &store, pause, ours.key("reserve").reserve(3, Duration::ZERO)).await;
            assert!(!reserved.decision().is_granted());
            for key in ["check", "reserve"] {
                let what = format!("{name}: {key} has all its tokens");
                poll_until(&what, async || observed.key(key).peek(1).await.remaining() == 5).await;
            }
        }
    }
}

#[tokio::test]
async fn canceled_call_is_refunded() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "leaves", FIVE_PER_YEAR);
    wait_until_decides(&limiter).await;
    server.pause().unwrap();
    assert!(tokio::time::timeout(DEADLINE, limiter.decide("a", 1)).await.is_err());
    server.resume().unwrap();
    poll_until("it has all its tokens", async || limiter.key("a").peek(1).await.remaining() == 5).await;
}

#[tokio::test]
async fn default_mode_admits_no_more_than_the_bound_in_each_process() {
    let server = RedisServer::start().unwrap();
    let store = connect_short_deadline(&server).await;
    let limiter = build_limiter_with(&store, "bound", "10 per 52w", FailureMode::default());
    wait_until_decides(&limiter).await;
    let mut admitted = 0;
    for _ in 0..6 {
        admitted += u32::from(limiter.decide("a", 1).await.is_granted());
    }
    assert_eq!(admitted, 6);
    server.kill();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    for _ in 0..10 {
        admitted += u32::from(limiter.decide("a", 1).await.is_granted());
    }
    assert_eq!(admitted, 10, "grants of the store count");
    // The server restarts without data and would grant the whole limit again.
    server.restart().unwrap();
    poll_until("the store is available", async || store.last_error().is_none()).await;
    for _ in 0..10 {
        admitted += u32::from(limiter.decide("a", 1).await.is_granted());
        admitted += u32::from(limiter.key("a").reserve(1, Duration::ZERO).await.keep().is_granted());
    }
    assert_eq!(admitted, 10, "grants during the outage count");
    assert!(limiter.decide("another", 1).await.is_granted());
}

#[tokio::test]
async fn default_mode_holds_no_more_slots_than_the_limit_in_each_process() {
    let server = RedisServer::start().unwrap();
    let store = connect_short_deadline(&server).await;
    let limiter = build_limiter_with(&store, "slots", "3 at once", FailureMode::default());
    poll_until("the store decides", async || limiter.key("other").permit().await.decision().is_granted())
        .await;
    let mut permits = Vec::new();
    for _ in 0..2 {
        permits.push(limiter.key("a").permit().await);
    }
    assert!(permits.iter().all(|permit| permit.decision().is_granted()));
    server.kill();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    let more = [limiter.key("a").permit().await, limiter.key("a").permit().await];
    assert_eq!(more.iter().filter(|permit| permit.decision().is_granted()).count(), 1);
    drop(permits);
    let last =
        [limiter.key("a").permit().await, limiter.key("a").permit().await, limiter.key("a").permit().await];
    assert_eq!(last.iter().filter(|permit| permit.decision().is_granted()).count(), 2);
}

#[tokio::test]
async fn slots_are_registered_again_after_data_loss() {
    let server = RedisServer::start().unwrap();
    let (ours, observer) = (connect_short_deadline(&server).await, connect_store(&server.url()).await);
    let ours = build_limiter(&ours, "registered", "2 at once lease 1h");
    let observed = build_limiter(&observer, "registered", "2 at once lease 1h");
    poll_until("the store decides", async || ours.key("other").permit().await.decision().is_granted()).await;
    let permit = ours.key("a").permit().await;
    assert!(permit.decision().is_granted());
    server.kill();
    server.restart().unwrap();
    let is_registered = async || {
        let decision = observed.key("a").peek(1).await;
        !decision.is_degraded() && decision.remaining() == 1
    };
    poll_until("the slot is registered again", is_registered).await;
    assert!(!permit.is_lost());
    drop(permit);
    poll_until("the slot is released", async || observed.key("a").peek(1).await.remaining() == 2).await;
}

#[tokio::test]
async fn idle_connection_that_was_closed_degrades_no_decision() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "idle", FIVE_PER_YEAR);
    wait_until_decides(&limiter).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    poll_until("the store has reconnected", async || store.outages() == 1 && store.last_error().is_none())
        .await;
    assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 4 of 5");
    assert_eq!(limiter.degraded_count(), 0);
}

#[tokio::test]
async fn decisions_wait_for_the_first_connection() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(LONG_DEADLINE).open(&server.url()).unwrap();
    let limiter = build_limiter_with(&store, "first", FIVE_PER_YEAR, FailureMode::Closed);
    assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 4 of 5");
    assert_eq!((limiter.degraded_count(), store.outages()), (0, 0));
    assert!(integer_reply(&server, &["DBSIZE"]) > 0);
}
