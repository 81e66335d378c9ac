//! What several processes admit while their store comes and goes, and what stays of it over a reload.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};
use tidegate_core::{Bound, CarryOver, Micros, Quota, StateEntries};
use tidegate_limiter::{
    Capacity, Limiter, LimiterBuilder, Outage, OutageBound, Overflow, Store, StoreError,
    store::{Answer, Inquiry, Pending, Reply, Request},
};
use tidegate_testkit::strategy::runner;

/// A store that counts as the model does, while it answers.
#[derive(Clone, Debug, Default)]
struct Flaky(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    condition: Condition,
    keys: HashMap<(String, String), StateEntries>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Condition {
    #[default]
    Up,
    Late,
    Down,
}

/// No time passes.
const NOW: Micros = Micros::from_secs(1_000);

impl Flaky {
    fn set(&self, condition: Condition) {
        self.0.lock().unwrap().condition = condition;
    }
}

impl Inner {
    fn answer(&mut self, ask: &Inquiry) -> Answer {
        let limit = &ask.place.limit;
        let key = self.keys.entry((limit.name().to_owned(), ask.place.key.clone())).or_default();
        Answer { steps: key.decide(limit.quotas(), CarryOver::Keep, NOW, ask.demand), generation: 0 }
    }
}

impl Store for Flaky {
    fn perform(&self, request: Request) -> Pending<Result<Reply, StoreError>> {
        let mut inner = self.0.lock().unwrap();
        let reply = match (inner.condition, request) {
            (Condition::Down, _) => Err(StoreError::Away("down".to_owned())),
            (Condition::Late, _) => Err(StoreError::Late),
            (Condition::Up, Request::Decide(asks)) => {
                Ok(Reply::Decided(asks.iter().map(|ask| inner.answer(ask)).collect()))
            }
            (Condition::Up, other) => panic!("not asked here: {other:?}"),
        };
        Box::pin(std::future::ready(reply))
    }
}

fn process(store: &Flaky, quota: &str, outage: Outage, memory: LimiterBuilder) -> Limiter {
    let builder = memory.name("rule").store(store.clone());
    builder.on_outage(outage).build(quota).unwrap()
}

fn bound(quota: &str) -> Bound {
    quota.parse::<Quota>().unwrap().bound()
}

const MINUTE: Micros = Micros::from_secs(60);

#[test]
fn bounds_include_what_is_admitted_in_an_outage() {
    let quota = "10 per 52w burst 5";
    for (outage, expected, in_three) in [
        (Outage::Closed, OutageBound::Nothing, Some(5)),
        (Outage::Open, OutageBound::Everything, None),
        (Outage::Local { nodes: 1 }, OutageBound::WholePerProcess, Some(15)),
        (Outage::Local { nodes: 3 }, OutageBound::SharePerProcess(bound("10 per 156w burst 1")), Some(8)),
        // At least one token each.
        (Outage::Local { nodes: 9 }, OutageBound::SharePerProcess(bound("10 per 468w burst 1")), Some(8)),
    ] {
        let limiter = process(&Flaky::default(), quota, outage, Limiter::builder());
        let [fleet] = limiter.bounds()[..] else { panic!("one quota") };
        assert_eq!((fleet.usual, fleet.during_outage), (bound(quota), expected), "{outage:?}");
        assert_eq!(fleet.in_any(MINUTE, 3), in_three, "{outage:?}");
    }
    let memory = Limiter::builder().build(quota).unwrap();
    assert_eq!(memory.bounds()[0].during_outage, OutageBound::NoStore);
    assert_eq!(memory.bounds()[0].in_any(MINUTE, 3), Some(15));
}

#[test]
fn bounds_read_as_sentences() {
    let text = |outage| {
        process(&Flaky::default(), "100/min burst 20", outage, Limiter::builder()).bounds()[0].to_string()
    };
    let usual = "at most 20 at once and 100/min on top: 120 in any 1min";
    let together = format!("{usual}, in all processes together; while the store is unavailable");
    assert_eq!(text(Outage::Closed), format!("{together} nothing is admitted"));
    assert_eq!(text(Outage::Open), format!("{together} there is no bound"));
    assert_eq!(text(Outage::Local { nodes: 1 }), format!("{together} in each process"));
    let share = bound("100 per 2min burst 10");
    assert_eq!(text(Outage::Local { nodes: 2 }), format!("{together} each process adds {share}"));
    let memory = Limiter::builder().build("100/min burst 20").unwrap();
    assert_eq!(memory.bounds()[0].to_string(), format!("{usual}, in each process"));
}

/// Which process asks, what becomes of the store before that, and the cost.
type Step = (prop::sample::Index, Option<Condition>, u64);

/// Processes that ask in turn, and a store that comes and goes: never more than the bound, and in the worst order all of it.
#[test]
fn processes_admit_no_more_than_their_bound_through_outages() {
    let conditions = prop_oneof![Just(Condition::Up), Just(Condition::Late), Just(Condition::Down)];
    let step = (any::<prop::sample::Index>(), prop::option::weighted(0.2, conditions), 1_u64..=3);
    let outages = prop_oneof![
        Just(Outage::Closed),
        Just(Outage::Local { nodes: 1 }),
        (2_u64..=6).prop_map(|nodes| Outage::Local { nodes }),
    ];
    let quotas =
        prop::sample::select(vec!["7 per 52w", "7 per 52w sliding-log", "8 per 52w sliding-strict 4"]);
    let stories = (quotas, outages, 1_usize..=4, prop::collection::vec(step, 1..120));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let law = |(quota, outage, processes, steps): (&str, Outage, usize, Vec<Step>)| {
        let store = Flaky::default();
        let small = || Limiter::builder().capacity(Capacity::Keys(4));
        let fleet: Vec<_> = (0..processes).map(|_| process(&store, quota, outage, small())).collect();
        let mut admitted = 0;
        for (which, condition, cost) in steps {
            condition.into_iter().for_each(|condition| store.set(condition));
            let decision = runtime.block_on(which.get(&fleet).decide("a", cost));
            admitted += if decision.is_allowed() { cost } else { 0 };
        }
        let most = fleet[0].bounds()[0].in_any(MINUTE, processes as u64);
        prop_assert!(most.is_some_and(|most| admitted <= most), "{} admitted, at most {:?}", admitted, most);
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[tokio::test]
async fn worst_order_of_outages_reaches_the_bound() {
    for outage in [Outage::Closed, Outage::Local { nodes: 1 }, Outage::Local { nodes: 3 }] {
        let store = Flaky::default();
        let fleet = [0; 3].map(|_| process(&store, "9 per 52w", outage, Limiter::builder()));
        let mut admitted = 0;
        for condition in [Condition::Up, Condition::Down] {
            store.set(condition);
            // The first takes all that the store has.
            for process in &fleet {
                for _ in 0..9 {
                    admitted += u64::from(process.decide("a", 1).await.is_allowed());
                }
            }
        }
        assert_eq!(Some(admitted), fleet[0].bounds()[0].in_any(MINUTE, 3), "{outage:?}");
    }
}

/// How many new keys find room.
async fn keys_with_room(limiter: &Limiter, prefix: &str) -> usize {
    let mut count = 0;
    for key in 0..100 {
        count += usize::from(limiter.decide(&format!("{prefix} {key}"), 1).await.is_allowed());
    }
    count
}

/// A reload with another capacity while the store is down: the new table has the new size and keeps the counts.
#[tokio::test]
async fn reload_with_another_capacity_in_an_outage_keeps_counts() {
    for quota in ["5 per 52w", "5 per 52w sliding-log"] {
        for (nodes, limit) in [(1, 5), (2, 2)] {
            let outage = Outage::Local { nodes };
            let store = Flaky::default();
            store.set(Condition::Down);
            let of_size = |keys, overflow| {
                let memory = Limiter::builder().capacity(Capacity::Keys(keys)).overflow(overflow);
                process(&store, quota, outage, memory)
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

            // A table that shares its last cells instead has room for any key.
            let sharing = of_size(1, Overflow::Share);
            sharing.take_over(&small);
            assert!(!sharing.decide("limited", 1).await.is_allowed(), "{quota} {outage:?}");
            assert!(keys_with_room(&sharing, "fourth").await >= limit, "{quota} {outage:?}");
        }
    }
}
