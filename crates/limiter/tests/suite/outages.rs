//! What several processes admit through outages of their store, and what survives a reload.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_core::{Bound, CarryOver, Micros, Quota, StateEntries};
use tidegate_limiter::{
    Capacity, FailureMode, Limiter, LimiterBuilder, OutageBound, Overflow, Store, StoreError,
    store::{StoreCheck, StoreDecision, StoreFuture, StoreReply, StoreRequest},
};
use tidegate_testkit::strategy::runner;

/// A store that counts as the model does while it is available.
#[derive(Clone, Debug, Default)]
struct FlakyStore(Arc<Mutex<FlakyState>>);

#[derive(Debug, Default)]
struct FlakyState {
    availability: Availability,
    keys: HashMap<(String, String), StateEntries>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Availability {
    #[default]
    Up,
    TimingOut,
    Down,
}

/// No time passes.
const NOW: Micros = Micros::from_secs(1_000);

impl FlakyStore {
    fn set(&self, availability: Availability) {
        self.0.lock().unwrap().availability = availability;
    }
}

impl FlakyState {
    fn decide(&mut self, check: &StoreCheck) -> StoreDecision {
        let limit = &check.key_ref.limit;
        let key = self.keys.entry((limit.name().to_owned(), check.key_ref.key.clone())).or_default();
        StoreDecision {
            results: key.decide(limit.quotas(), CarryOver::Keep, NOW, check.demand),
            generation: 0,
        }
    }
}

impl Store for FlakyStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let mut inner = self.0.lock().unwrap();
        let reply = match (inner.availability, request) {
            (Availability::Down, _) => Err(StoreError::Unavailable("down".to_owned())),
            (Availability::TimingOut, _) => Err(StoreError::Timeout),
            (Availability::Up, StoreRequest::Decide(checks)) => {
                Ok(StoreReply::Decided(checks.iter().map(|check| inner.decide(check)).collect()))
            }
            (Availability::Up, StoreRequest::Reset(key_ref)) => {
                inner.keys.remove(&(key_ref.limit.name().to_owned(), key_ref.key));
                Ok(StoreReply::Done)
            }
            (Availability::Up, other) => panic!("unexpected request: {other:?}"),
        };
        Box::pin(std::future::ready(reply))
    }
}

fn build_process(store: &FlakyStore, quota: &str, outage: FailureMode, memory: LimiterBuilder) -> Limiter {
    let builder = memory.name("rule").store(store.clone());
    builder.failure_mode(outage).build(quota).unwrap()
}

fn bound(quota: &str) -> Bound {
    quota.parse::<Quota>().unwrap().bound()
}

const MINUTE: Micros = Micros::from_secs(60);

#[test]
fn bounds_include_outages() {
    let quota = "10 per 52w burst 5";
    for (mode, expected, in_three) in [
        (FailureMode::Closed, OutageBound::Nothing, Some(5)),
        (FailureMode::Open, OutageBound::Everything, None),
        (FailureMode::Local { nodes: 1 }, OutageBound::WholePerProcess, Some(15)),
        (
            FailureMode::Local { nodes: 3 },
            OutageBound::SharePerProcess(bound("10 per 156w burst 1")),
            Some(8),
        ),
        // At least one token each.
        (
            FailureMode::Local { nodes: 9 },
            OutageBound::SharePerProcess(bound("10 per 468w burst 1")),
            Some(8),
        ),
    ] {
        let limiter = build_process(&FlakyStore::default(), quota, mode, Limiter::builder());
        let [fleet] = limiter.bounds()[..] else { panic!("one quota") };
        assert_eq!((fleet.normal, fleet.during_outage), (bound(quota), expected), "{mode:?}");
        assert_eq!(fleet.max_admitted(MINUTE, 3), in_three, "{mode:?}");
    }
    let memory = Limiter::builder().build(quota).unwrap();
    assert_eq!(memory.bounds()[0].during_outage, OutageBound::NoStore);
    assert_eq!(memory.bounds()[0].max_admitted(MINUTE, 3), Some(15));
}

#[test]
fn bounds_display_text() {
    let text = |outage| {
        build_process(&FlakyStore::default(), "100/min burst 20", outage, Limiter::builder()).bounds()[0]
            .to_string()
    };
    let normal = "at most 20 at once and 100/min on top: 120 in any 1min";
    let together = format!("{normal}, in all processes together; while the store is unavailable");
    assert_eq!(text(FailureMode::Closed), format!("{together} nothing is admitted"));
    assert_eq!(text(FailureMode::Open), format!("{together} there is no bound"));
    assert_eq!(text(FailureMode::Local { nodes: 1 }), format!("{together} in each process"));
    let share = bound("100 per 2min burst 10");
    assert_eq!(text(FailureMode::Local { nodes: 2 }), format!("{together} each process adds {share}"));
    let memory = Limiter::builder().build("100/min burst 20").unwrap();
    assert_eq!(memory.bounds()[0].to_string(), format!("{normal}, in each process"));
}

/// The process that checks, the new state of the store before that, and the cost.
type OutageStep = (prop::sample::Index, Option<Availability>, u64);

/// Processes check in turn through outages of the store: never more than the bound is admitted.
#[test]
fn processes_stay_within_bound_through_outages() {
    let conditions =
        prop_oneof![Just(Availability::Up), Just(Availability::TimingOut), Just(Availability::Down)];
    let step = (any::<prop::sample::Index>(), prop::option::weighted(0.2, conditions), 1_u64..=3);
    let outages = prop_oneof![
        Just(FailureMode::Closed),
        Just(FailureMode::Local { nodes: 1 }),
        (2_u64..=6).prop_map(|nodes| FailureMode::Local { nodes }),
    ];
    let quotas =
        prop::sample::select(vec!["7 per 52w", "7 per 52w sliding-log", "8 per 52w sliding-strict 4"]);
    let cases = (quotas, outages, 1_usize..=4, prop::collection::vec(step, 1..120));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let law = |(quota, outage, processes, steps): (&str, FailureMode, usize, Vec<OutageStep>)| {
        let store = FlakyStore::default();
        let small = || Limiter::builder().capacity(Capacity::Keys(4));
        let fleet: Vec<_> = (0..processes).map(|_| build_process(&store, quota, outage, small())).collect();
        let mut admitted = 0;
        for (which, condition, cost) in steps {
            condition.into_iter().for_each(|condition| store.set(condition));
            let decision = runtime.block_on(which.get(&fleet).decide("a", cost));
            admitted += if decision.is_allowed() { cost } else { 0 };
        }
        let max_admitted = fleet[0].bounds()[0].max_admitted(MINUTE, processes as u64);
        prop_assert!(
            max_admitted.is_some_and(|max_admitted| admitted <= max_admitted),
            "{} admitted, at most {:?}",
            admitted,
            max_admitted
        );
        Ok(())
    };
    runner().run(&cases, law).unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test]
async fn worst_order_of_outages_reaches_the_bound() {
    for outage in [FailureMode::Closed, FailureMode::Local { nodes: 1 }, FailureMode::Local { nodes: 3 }] {
        let store = FlakyStore::default();
        let fleet = [0; 3].map(|_| build_process(&store, "9 per 52w", outage, Limiter::builder()));
        let mut admitted = 0;
        for condition in [Availability::Up, Availability::Down] {
            store.set(condition);
            // The first process takes everything that the store grants.
            for process in &fleet {
                for _ in 0..9 {
                    admitted += u64::from(process.decide("a", 1).await.is_allowed());
                }
            }
        }
        assert_eq!(Some(admitted), fleet[0].bounds()[0].max_admitted(MINUTE, 3), "{outage:?}");
    }
}

/// The number of new keys that find a cell.
async fn keys_with_room(limiter: &Limiter, prefix: &str) -> usize {
    let mut count = 0;
    for key in 0..100 {
        count += usize::from(limiter.decide(&format!("{prefix} {key}"), 1).await.is_allowed());
    }
    count
}

/// A key that used its total during an outage is denied by this process afterwards, until it is reset.
#[tokio::test]
async fn reset_after_an_outage_resets_the_count_of_this_process() {
    let store = FlakyStore::default();
    let limiter = build_process(&store, "2 total", FailureMode::default(), Limiter::builder());
    store.set(Availability::Down);
    for expected in [true, true, false] {
        assert_eq!(limiter.decide("a", 1).await.is_allowed(), expected);
    }
    store.set(Availability::Up);
    let denied = limiter.decide("a", 1).await;
    assert!(!denied.is_allowed() && denied.is_degraded());
    limiter.key("a").reset().await.unwrap();
    for expected in [true, true, false] {
        assert_eq!(limiter.decide("a", 1).await.is_allowed(), expected);
    }
}

/// During an outage a table that is full of totals and slots denies new keys; afterwards the store decides them.
#[tokio::test]
async fn full_table_after_an_outage_denies_no_key_that_the_store_admits() {
    let store = FlakyStore::default();
    let small = Limiter::builder().capacity(Capacity::Keys(1));
    let limiter = build_process(&store, "2 total", FailureMode::default(), small);
    store.set(Availability::Down);
    assert!(keys_with_room(&limiter, "outage").await <= 8, "eight cells");
    store.set(Availability::Up);
    assert_eq!(keys_with_room(&limiter, "new").await, 100);
    assert_eq!(keys_with_room(&limiter, "new").await, 100);
    assert_eq!(keys_with_room(&limiter, "new").await, 0, "the store counts them");
    let reservation = limiter.key("reserved").reserve(1, Duration::ZERO).await;
    assert!(reservation.decision().is_allowed());
    reservation.keep();
}

/// A reload with another capacity while the store is down: the new table has the new size and keeps the counts.
#[tokio::test]
async fn reload_with_another_capacity_in_an_outage_keeps_counts() {
    for quota in ["5 per 52w", "5 per 52w sliding-log"] {
        for (nodes, limit) in [(1, 5), (2, 2)] {
            let outage = FailureMode::Local { nodes };
            let store = FlakyStore::default();
            store.set(Availability::Down);
            let of_size = |keys, overflow| {
                let memory = Limiter::builder().capacity(Capacity::Keys(keys)).overflow(overflow);
                build_process(&store, quota, outage, memory)
            };
            let small = of_size(1, Overflow::Deny);
            for _ in 0..limit {
                assert!(small.decide("limited", 1).await.is_allowed(), "{quota}");
            }
            assert!(keys_with_room(&small, "first").await <= 7, "{quota}: eight cells");

            let large = of_size(1_000, Overflow::Deny);
            large.take_over(&small);
            assert!(!large.decide("limited", 1).await.is_allowed(), "{quota} {outage:?}");
            assert_eq!(keys_with_room(&large, "second").await, 100, "{quota} {outage:?}");

            let small = of_size(1, Overflow::Deny);
            small.take_over(&large);
            assert!(!small.decide("limited", 1).await.is_allowed(), "{quota} {outage:?}");
            assert!(keys_with_room(&small, "third").await <= 7, "{quota} {outage:?}");

            // A table that shares its last cells accepts any key.
            let sharing = of_size(1, Overflow::Share);
            sharing.take_over(&small);
            assert!(!sharing.decide("limited", 1).await.is_allowed(), "{quota} {outage:?}");
            assert!(keys_with_room(&sharing, "fourth").await >= limit, "{quota} {outage:?}");
        }
    }
}
