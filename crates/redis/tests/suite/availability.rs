//! Late is not down: what a missed deadline decides, what a late answer gives back, and how much an outage admits.

#![cfg(target_os = "linux")]

use crate::common::{
    FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, build_limiter_with, connect_store, integer_reply,
    poll_until, summarize,
};
use std::time::Duration;
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// Longer than any answer of a server that runs, even on a busy machine.
const DEADLINE: Duration = Duration::from_millis(300);

async fn connect_short_deadline(server: &RedisServer) -> RedisStore {
    RedisStore::builder().deadline(DEADLINE).connect(&server.url()).await.unwrap()
}

/// Lets the server know the scripts and the quota, so that what is late later is a decision.
async fn wait_until_decides(limiter: &Limiter) {
    poll_until("the store decides", async || !limiter.decide("other", 1).await.is_degraded()).await;
}

/// How long the server stands still while one request is late.
#[derive(Clone, Copy, Debug)]
enum PauseLength {
    /// Until the request has missed its deadline.
    Short,
    /// Until the store counts as unavailable.
    Long,
}

/// One request misses its deadline; then the server goes on.
async fn miss_deadline<T>(
    server: &RedisServer,
    store: &RedisStore,
    pause: PauseLength,
    request: impl Future<Output = T>,
) -> T {
    server.pause().unwrap();
    let answer = request.await;
    if let PauseLength::Long = pause {
        poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    }
    server.resume().unwrap();
    answer
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
        poll_until("it decides", async || !limiter.key("a").peek(1).await.is_degraded()).await;
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
    let held = limiter.key("a").permit().await;
    assert!(held.decision().is_granted());
    server.pause().unwrap();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    drop(held);
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
    assert_eq!(admitted, 10, "what the store had granted counts");
    // It comes back with nothing, and would grant everything again.
    server.restart().unwrap();
    poll_until("the store is available", async || store.last_error().is_none()).await;
    for _ in 0..10 {
        admitted += u32::from(limiter.decide("a", 1).await.is_granted());
        admitted += u32::from(limiter.key("a").reserve(1, Duration::ZERO).await.keep().is_granted());
    }
    assert_eq!(admitted, 10, "what was granted without the store counts");
    assert!(limiter.decide("another", 1).await.is_granted());
}

#[tokio::test]
async fn default_mode_holds_no_more_slots_than_the_limit_in_each_process() {
    let server = RedisServer::start().unwrap();
    let store = connect_short_deadline(&server).await;
    let limiter = build_limiter_with(&store, "slots", "3 at once", FailureMode::default());
    poll_until("the store decides", async || limiter.key("other").permit().await.decision().is_granted())
        .await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(limiter.key("a").permit().await);
    }
    assert!(held.iter().all(|permit| permit.decision().is_granted()));
    server.kill();
    poll_until("the store is unavailable", async || store.last_error().is_some()).await;
    let more = [limiter.key("a").permit().await, limiter.key("a").permit().await];
    assert_eq!(more.iter().filter(|permit| permit.decision().is_granted()).count(), 1);
    drop(held);
    let last =
        [limiter.key("a").permit().await, limiter.key("a").permit().await, limiter.key("a").permit().await];
    assert_eq!(last.iter().filter(|permit| permit.decision().is_granted()).count(), 2);
}

#[tokio::test]
async fn slots_are_registered_again_after_data_loss() {
    let server = RedisServer::start().unwrap();
    let (ours, observer) = (connect_short_deadline(&server).await, connect_store(&server.url()).await);
    let ours = build_limiter(&ours, "held", "2 at once lease 1h");
    let observed = build_limiter(&observer, "held", "2 at once lease 1h");
    poll_until("the store decides", async || ours.key("other").permit().await.decision().is_granted()).await;
    let held = ours.key("a").permit().await;
    assert!(held.decision().is_granted());
    server.kill();
    server.restart().unwrap();
    let look = async || {
        let decision = observed.key("a").peek(1).await;
        !decision.is_degraded() && decision.remaining() == 1
    };
    poll_until("the slot is known again", look).await;
    assert!(!held.is_lost());
    drop(held);
    poll_until("it is given back", async || observed.key("a").peek(1).await.remaining() == 2).await;
}

#[tokio::test]
async fn idle_connection_that_was_closed_degrades_no_decision() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "idle", FIVE_PER_YEAR);
    wait_until_decides(&limiter).await;
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    poll_until("it is found out", async || store.outages() == 1 && store.last_error().is_none()).await;
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
