//! Tiers in a real server: each call selects the tier that limits a key, and all tiers share its history.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::{build_limiter, connect_store, summarize};
use proptest::{prelude::*, test_runner::TestCaseResult};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Quota};
use tidegate_limiter::{
    Clock, FailureMode, Limiter, Reservation, Waiter,
    store::{KeyRef, PermitMode, QuotaSelection, StoreCheck, StoreLimit, StoreReply, StoreRequest},
};
use tidegate_testkit::{servers::RedisServer, strategy::*};

/// The pause, the cost, the tier, the longest wait and an operation: 0 refunds the last charge first, 1 resets the key.
type TierStep = (CallPause, CallCost, usize, MaxWait, u8);

/// Runs random traces at the same times in memory and in the server.
#[test]
fn redis_tiers_match_memory() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = runtime.block_on(connect_store(&server.url()));
    let next_key = AtomicU64::new(0);
    for (name, samples) in every_algorithm().into_iter().filter(|(name, _)| *name != "concurrency") {
        let caller = (pauses(), costs(), 0_usize..3, max_waits(), 0_u8..8);
        let inputs = (proptest::collection::vec(samples, 2..4), proptest::collection::vec(caller, 1..25));
        let property = |(samples, steps): (Vec<Sample>, Vec<TierStep>)| -> TestCaseResult {
            let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let (clock, manual_clock) = Clock::manual();
            let memory = Limiter::builder().clock(clock).build_tiers(&quotas).unwrap();
            let limit =
                Arc::new(StoreLimit::new("tiers", quotas.clone(), QuotaSelection::Tier, CarryOver::Keep));
            let key = next_key.fetch_add(1, Ordering::Relaxed).to_string();
            let mut call_clock = CallClock::new(&samples[0]);
            let mut last_charge = None;
            for (pause, cost, tier, max_wait, op) in steps {
                let tier = tier % quotas.len();
                call_clock.advance(pause);
                manual_clock.set(call_clock.now);
                let key_ref = |tier| KeyRef { limit: limit.clone(), key: key.clone(), tier };
                let execute = |request| {
                    runtime.block_on(store.execute_at(&[request], call_clock.now)).pop().unwrap().unwrap()
                };
                match (op, last_charge.take()) {
                    (0, Some((reservation, tier, charge, cost))) => {
                        execute(StoreRequest::Refund { key_ref: key_ref(tier), charge, cost });
                        drop::<Reservation>(reservation);
                    }
                    (1, _) => {
                        execute(StoreRequest::Reset(key_ref(tier)));
                        memory.blocking().key("k").reset().unwrap();
                    }
                    (_, Some((reservation, ..))) => {
                        reservation.keep();
                    }
                    _ => {}
                }
                let caller = CallStep { pause: CallPause::None, cost, max_wait };
                let demand = caller.demand(&samples[tier]);
                let check = StoreCheck {
                    key_ref: key_ref(tier),
                    demand,
                    permit_mode: PermitMode::Peek,
                    receipt: true,
                };
                let StoreReply::Decided(answers) = execute(StoreRequest::Decide(vec![check])) else {
                    panic!("no decision")
                };
                let bucket = memory.blocking().key("k").tier(tier).unwrap();
                let reservation = bucket.reserve(demand.cost, demand.max_wait.into());
                let (ours, theirs) = (*reservation.decision(), answers[0].results[0].decision);
                prop_assert_eq!(ours, theirs, "{:?} under {} at {}", demand, quotas[tier], call_clock.now);
                call_clock.record(&ours);
                last_charge =
                    ours.is_granted().then(|| (reservation, tier, answers[0].charge(), demand.cost));
            }
            Ok(())
        };
        if let Err(failure) = runner_with_cases(24).run(&inputs, property) {
            panic!("{name}: {failure}");
        }
    }
}

/// The same results in memory and in the server; during an outage the decisions are degraded.
#[tokio::test]
async fn call_selects_its_tier() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let tiers: Vec<Quota> = ["2 per 52w", "5 per 52w"].map(|quota| quota.parse().unwrap()).to_vec();
    let builder = || Limiter::builder().name("plans");
    let memory = builder().build_tiers(&tiers).unwrap();
    let redis = builder().store(store.clone()).failure_mode(FailureMode::Closed).build_tiers(&tiers).unwrap();
    for limiter in [&memory, &redis] {
        let tier = |tier| limiter.key("a").tier(tier);
        let (free, pro) = (tier(0).unwrap(), tier(1).unwrap());
        assert!(tier(2).is_none() && limiter.tiers() == 2);
        assert_eq!(summarize(&free.check(2).await), "allow 0 of 2");
        assert_eq!(summarize(&free.check(1).await), "deny 0 of 2");
        assert_eq!(summarize(&pro.peek(1).await), "allow 3 of 5");
        let reserved = pro.reserve(2, Duration::ZERO).await;
        assert_eq!((summarize(reserved.decision()), reserved.decision().quota()), ("allow 1 of 5".into(), 1));
        reserved.cancel().await;
        let (taken, decision): (u64, Decision) = pro.take_up_to(9).await;
        assert_eq!((taken, summarize(&decision)), (3, "allow 0 of 5".into()));
        limiter.key("a").reset().await.unwrap();
        let waiter = |cost| Waiter::new(cost).deadline(Duration::ZERO);
        assert!(free.acquire_queued(waiter(3)).await.is_err() && pro.acquire_queued(waiter(3)).await.is_ok());
        limiter.key("a").reset().await.unwrap();
        assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 1 of 2");
        assert_eq!(limiter.degraded_count(), 0);
    }
    assert!(build_limiter(&store, "one", "5 per 52w").key("a").tier(1).is_none());
    let mixed = [tiers[0], "5/s sliding-log".parse().unwrap()];
    assert!(builder().build_tiers(&mixed).is_err() && builder().store(store).build_tiers(&mixed).is_err());
    server.kill();
    let free = redis.key("a").tier(0).unwrap();
    assert!(free.check(1).await.is_degraded() && !free.check(1).await.is_granted());
}
