//! Many keys in a small table: they are independent, eviction loses nothing, and a flood resets no limited key.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::{collections::HashMap, time::Duration};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota};
use tidegate_limiter::{Capacity, Clock, Limiter, LimiterBuilder, ManualClock, Overflow};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

fn builder(keys: u64) -> (LimiterBuilder, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(keys)).overflow(Overflow::Share), manual_clock)
}

/// The cells of the smallest table: any table holds at least this many limited keys.
const MIN_CELLS: usize = 8;

/// The state of each key without a memory bound, and until when the store must retain it.
struct UnboundedModel {
    quota: Quota,
    keys: HashMap<u64, (CoreModel, Micros)>,
}

impl UnboundedModel {
    fn live(&self, now: Micros) -> usize {
        self.keys.values().filter(|(_, until)| *until >= now).count()
    }

    fn has_room(&self, key: u64, now: Micros) -> bool {
        let is_live = self.keys.get(&key).is_some_and(|(_, until)| *until >= now);
        is_live || self.live(now) < MIN_CELLS
    }

    fn check(&mut self, key: u64, now: Micros, cost: u64) -> Decision {
        let (model, until) =
            self.keys.entry(key).or_insert_with(|| (CoreModel::new(self.quota), Micros::ZERO));
        let decision = model.decide(now, Demand::new(cost)).decision;
        *until = now.saturating_add(decision.reset_after()).max(*until);
        decision
    }
}

#[test]
fn evicting_expired_keys_changes_no_decision() {
    let steps = proptest::collection::vec((pauses(), 0_u64..60, costs()), 1..120);
    check_property((steps, prop_oneof![Just(1_u64), Just(7), Just(40)]), |sample, (steps, capacity)| {
        let (builder, manual_clock) = builder(capacity);
        manual_clock.set(sample.start);
        let limiter = builder.build(sample.quota).unwrap();
        let mut model = UnboundedModel { quota: sample.quota, keys: HashMap::new() };
        let mut call_clock = CallClock::new(&sample);
        let counts_permits = sample.quota.rate().is_none();
        for (pause, key, cost) in steps {
            call_clock.advance(pause);
            manual_clock.set(call_clock.now);
            if counts_permits || !model.has_room(key, call_clock.now) {
                continue;
            }
            let cost = cost.resolve(sample.quota.limit());
            let expected = model.check(key, call_clock.now, cost);
            let decision = limiter.check_cost(&key, cost);
            prop_assert_eq!(decision, expected, "key {} at {}", key, call_clock.now);
            call_clock.record(&decision);
        }
        prop_assert_eq!(limiter.stats().unwrap().overflowed, 0);
        Ok(())
    });
}

#[test]
fn keys_are_independent() {
    let steps = proptest::collection::vec((pauses(), 0_u64..5, costs(), 0_u8..12), 1..60);
    check_property(steps, |sample, steps| {
        let (builder, manual_clock) = builder(100);
        manual_clock.set(sample.start);
        let limiter = builder.build(sample.quota).unwrap();
        let mut models: Vec<_> = (0..5).map(|_| CoreModel::new(sample.quota)).collect();
        let mut call_clock = CallClock::new(&sample);
        let counts_permits = sample.quota.rate().is_none();
        let mut permits = Vec::new();
        for (pause, key, cost, action) in steps {
            call_clock.advance(pause);
            manual_clock.set(call_clock.now);
            let model = &mut models[key as usize];
            if counts_permits {
                let (permit, result) =
                    (limiter.blocking().key(&key).permit(), model.decide(call_clock.now, Demand::new(1)));
                prop_assert_eq!(*permit.decision(), result.decision, "key {} at {}", key, call_clock.now);
                permits.push((key, permit, result.receipt));
                if action < 6 {
                    let (key, permit, receipt) = permits.swap_remove(usize::from(action) % permits.len());
                    drop(permit);
                    models[key as usize].refund(call_clock.now, receipt, receipt.cost);
                }
                continue;
            }
            if action == 0 {
                limiter.blocking().key(&key).reset().unwrap();
                *model = CoreModel::new(sample.quota);
            }
            let cost = cost.resolve(sample.quota.limit());
            let expected = model.decide(call_clock.now, Demand::new(cost)).decision;
            prop_assert_eq!(limiter.check_cost(&key, cost), expected, "key {} at {}", key, call_clock.now);
            call_clock.record(&expected);
        }
        Ok(())
    });
}

/// A change converts every existing key, in both representations, and new keys start under the new quota.
#[test]
fn quota_change_reaches_every_key() {
    for (old, new) in
        [("10/s", "40/s"), ("10000000007/s burst 10", "40/s"), ("10/min sliding-log", "4/min sliding-log")]
    {
        for how in [CarryOver::Keep, CarryOver::Reset] {
            let (old, new): (Quota, Quota) = (old.parse().unwrap(), new.parse().unwrap());
            let (builder, manual_clock) = builder(200);
            manual_clock.set(Micros::from_secs(7));
            let limiter = builder.build(old).unwrap();
            let mut models: Vec<_> = (0..150_u64).map(|_| CoreModel::new(old)).collect();
            for (key, model) in (0_u64..).zip(&mut models) {
                let cost = key % 11;
                let expected = model.decide(Micros::from_secs(7), Demand::new(cost)).decision;
                assert_eq!(limiter.check_cost(&key, cost), expected);
            }
            for (quota, times) in [(new, 1), (new, 2)] {
                limiter.change(quota, how).unwrap();
                assert_eq!(limiter.quotas(), [quota], "{times}");
                models.iter_mut().for_each(|model| model.change(Micros::from_secs(7), quota, how));
            }
            for (key, model) in (0_u64..).zip(&models) {
                let expected = model.peek(Micros::from_secs(7), Demand::peek(1)).decision;
                assert_eq!(
                    limiter.blocking().key(&key).peek(1),
                    expected,
                    "{old} to {new} {how:?}, key {key}"
                );
            }
            assert_eq!(limiter.blocking().key("new").peek(0).remaining(), new.limit());
        }
    }
}

/// Quotas of one word and of several.
const QUOTAS: [&str; 3] = ["5/min", "10000000007 per 10s burst 5", "5/min sliding-log"];

#[test]
fn key_flood_frees_no_limited_key() {
    for overflow in [Overflow::Replace, Overflow::Share, Overflow::Deny] {
        for quota in QUOTAS {
            let (builder, manual_clock) = builder(100);
            let limiter = builder.overflow(overflow).build(quota).unwrap();
            manual_clock.set(Micros::from_secs(3));
            assert!(limiter.check_cost("attacker", 5).is_allowed());
            let denied = limiter.check("attacker");
            assert!(!denied.is_granted());
            let flood = limiter.stats().unwrap().capacity * 10;
            let admitted = (0..flood).filter(|key| limiter.check_cost(key, 5).is_allowed()).count() as u64;
            let stats = limiter.stats().unwrap();
            assert_eq!(limiter.check("attacker"), denied, "{quota} {overflow:?}");
            // Every cell admitted one burst, and with sharing every shared cell too; everything else was counted as overflow.
            let cells = stats.used - 1;
            let shared = if overflow == Overflow::Deny { 0 } else { 100 };
            assert!((cells..=cells + shared).contains(&admitted), "{admitted} of {cells} cells");
            assert_eq!(stats.overflowed, flood - cells);
            assert_eq!(stats.live, stats.used);
            assert!(stats.used >= 70 && stats.used <= stats.capacity, "{stats:?}");
            assert_eq!(stats.replaced, 0, "all of them are limited");
        }
    }
}

#[test]
fn key_moved_from_shared_cell_keeps_its_debt() {
    for quota in ["5/min", "5/min sliding-log"] {
        let (builder, manual_clock) = builder(1);
        let limiter = builder.build(quota).unwrap();
        manual_clock.set(Micros::from_secs(1));
        let admitted = (0..8_u64).filter(|key| limiter.check_cost(key, 2).is_allowed()).count();
        assert_eq!((admitted, limiter.stats().unwrap().overflowed), (8, 0));
        assert!(limiter.check_cost("late", 5).is_allowed());
        assert!(!limiter.check("later").is_granted(), "both share one cell");
        assert_eq!(limiter.stats().unwrap().overflowed, 2);
        (0..8_u64).for_each(|key| limiter.blocking().key(&key).reset().unwrap());
        manual_clock.advance(Duration::from_micros(1));
        assert!(!limiter.check("late").is_granted(), "{quota}: the debt stays");
        assert_eq!(limiter.stats().unwrap().overflowed, 2, "no further overflow");
        manual_clock.advance(Duration::from_secs(61));
        assert_eq!(limiter.check("late").remaining(), 4);
    }
}

#[test]
fn refund_goes_to_charged_cell() {
    for quota in QUOTAS {
        let (builder, manual_clock) = builder(1);
        let limiter = builder.build(quota).unwrap();
        manual_clock.set(Micros::from_secs(1));
        let full = (0..8_u64).map(|key| limiter.check(&key)).filter(Decision::is_allowed).count();
        assert_eq!(full, 8);
        let shared = limiter.blocking().key("late").reserve(5, Duration::ZERO);
        assert!(shared.decision().is_allowed());
        assert!(!limiter.check("late").is_granted());
        shared.cancel();
        assert_eq!(limiter.blocking().key("late").peek(0).remaining(), 5, "{quota}");
        (0..8_u64).for_each(|key| assert_eq!(limiter.blocking().key(&key).peek(0).remaining(), 4));
    }
}

#[test]
fn full_table_denies_permits() {
    let (builder, manual_clock) = builder(1);
    let limiter = builder.overflow(Overflow::Share).build("1 at once").unwrap();
    let permits: Vec<_> = (0..8_u64).map(|key| limiter.blocking().key(&key).permit()).collect();
    assert!(permits.iter().all(|permit| permit.decision().is_allowed()));
    let late = limiter.blocking().key("late").permit();
    assert!(!late.decision().is_granted());
    assert_eq!(late.decision().retry_after(), Some(Micros::from_secs(1)));
    drop(permits);
    drop(late);
    manual_clock.advance(Duration::from_micros(1));
    assert!(limiter.blocking().key("late").permit().decision().is_allowed(), "a released cell is free");
}

fn check_all(limiter: &Limiter, keys: std::ops::Range<u64>) {
    for key in keys {
        limiter.check(&key);
    }
}

fn check_often(limiter: &Limiter, key: &str, times: u64) {
    for _ in 0..times {
        limiter.check(key);
    }
}

#[test]
fn stats_report_table_usage() {
    for quota in QUOTAS {
        let (builder, manual_clock) = builder(1_000);
        let limiter = builder.build(quota).unwrap();
        manual_clock.set(Micros::from_secs(1));
        let empty = limiter.stats().unwrap();
        assert_eq!((empty.live, empty.used, empty.overflowed), (0, 0, 0));
        assert!(empty.capacity >= 1_000 && empty.bytes >= 16_000, "{empty:?}");
        check_all(&limiter, 0..700);
        let full = limiter.stats().unwrap();
        assert_eq!((full.live, full.used, full.overflowed), (700, 700, 0), "{quota}");
        limiter.blocking().key(&0_u64).reset().unwrap();
        manual_clock.advance(Duration::from_micros(1));
        assert_eq!(limiter.stats().unwrap().live, 699);
        manual_clock.advance(Duration::from_secs(121));
        let expired = limiter.stats().unwrap();
        assert_eq!((expired.live, expired.used), (0, 700));
        // Cells are reused before new ones are touched.
        for round in 1..6 {
            check_all(&limiter, round * 1_000..round * 1_000 + 700);
            assert_eq!((limiter.stats().unwrap().live, limiter.stats().unwrap().overflowed), (700, 0));
            manual_clock.advance(Duration::from_secs(121));
        }
        assert!(
            limiter.stats().unwrap().used <= limiter.stats().unwrap().capacity,
            "{:?}",
            limiter.stats().unwrap()
        );
    }
}

#[test]
fn byte_capacity_bounds_memory() {
    for (bytes, quota) in
        [(1 << 20, "5/min"), (1 << 16, "5/min sliding-log"), (1 << 22, "100/min sliding-strict 60")]
    {
        let (builder, _manual_clock) = builder(1);
        let limiter = builder.capacity(Capacity::Bytes(bytes)).build(quota).unwrap();
        let stats = limiter.stats().unwrap();
        assert!(stats.bytes <= bytes && stats.capacity >= 1, "{quota}: {stats:?}");
    }
}

fn top_denied(limiter: &Limiter) -> Vec<(String, u64, u64)> {
    limiter.top_denied().into_iter().map(|denied| (denied.key, denied.denials, denied.error)).collect()
}

#[test]
fn top_denied_names_most_denied_keys() {
    let (builder, _manual_clock) = builder(100);
    let limiter = builder.track_denied(3).build("1/h").unwrap();
    for (key, calls) in [("ann", 5), ("bob", 3), ("cyd", 2)] {
        check_often(&limiter, key, calls);
    }
    let expected = [("ann", 4, 0), ("bob", 2, 0), ("cyd", 1, 0)];
    assert_eq!(top_denied(&limiter), expected.map(|(key, denials, error)| (key.to_owned(), denials, error)));
    // A new key takes the last position, with its count as the possible error.
    check_often(&limiter, "dan", 2);
    assert_eq!(top_denied(&limiter)[1..], [("bob".into(), 2, 0), ("dan".into(), 2, 1)]);
    // A long name is truncated between characters.
    check_often(&limiter, &"ä".repeat(1_000_000), 9);
    assert!(top_denied(&limiter)[0].0.len() <= 128 && top_denied(&limiter)[0].1 == 10);

    let untracked = Limiter::new("1/h").unwrap();
    untracked.check_cost("ann", 2);
    assert!(untracked.top_denied().is_empty());
}

/// A count is never too low, and never too high by more than its error.
#[test]
fn denial_counts_stay_within_error() {
    let keys = proptest::collection::vec(0_u8..12, 0..200);
    let law = |keys: Vec<u8>| -> TestCaseResult {
        let (builder, _manual_clock) = builder(100);
        let limiter = builder.track_denied(4).build("1/h").unwrap();
        let mut expected: HashMap<String, u64> = HashMap::new();
        for key in &keys {
            if !limiter.check(key).is_granted() {
                *expected.entry(format!("{key:?}")).or_default() += 1;
            }
        }
        let top = top_denied(&limiter);
        prop_assert!(top.len() <= 4);
        for (key, denials, error) in &top {
            prop_assert!(denials - error <= expected[key] && expected[key] <= *denials, "{key}: {top:?}");
        }
        Ok(())
    };
    runner().run(&keys, law).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn reset_settles_outstanding_reservations() {
    for quota in ["10/s", "10/s sliding-log", "10/s fixed-window", "9999991/s burst 10"] {
        let (clock, _manual_clock) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).build(quota).unwrap();
        let limit = limiter.quotas()[0].limit();
        let bucket = limiter.blocking().key("alice");
        let reservation = bucket.reserve(limit, Duration::ZERO);
        bucket.reset().unwrap();
        assert!(bucket.check(limit).is_allowed(), "{quota}");
        drop(reservation);
        assert!(!bucket.check(1).is_allowed(), "{quota}: a refund after a reset created tokens");
    }
}

#[test]
fn reset_keeps_reservations_of_other_keys() {
    for quota in ["10/s", "10/s sliding-log"] {
        let (clock, _manual_clock) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).build(quota).unwrap();
        let keys = 0..100_u32;
        let reservations: Vec<_> =
            keys.clone().map(|key| limiter.blocking().key(&key).reserve(10, Duration::ZERO)).collect();
        limiter.blocking().key(&1_000_000_u32).check(1);
        limiter.blocking().key(&1_000_000_u32).reset().unwrap();
        drop(reservations);
        let full = keys.filter(|key| limiter.blocking().key(key).peek(0).remaining() == 10).count();
        // A key may share its reset counter with the reset key: one in five hundred does.
        assert!(full >= 95, "{quota}: only {full} of 100 are full again");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Law 10: a denied key stays denied for its retry time, whatever other keys do.
    #[test]
    fn flood_keeps_limited_keys_denied(
        sample in any_sample(),
        steps in prop::collection::vec((0..60_u64, 1..4_u64, 0..3_000_u64), 1..300),
        overflow in prop::sample::select(vec![Overflow::Replace, Overflow::Share, Overflow::Deny]),
    ) {
        let (builder, manual_clock) = builder(1);
        let limiter = builder.overflow(overflow).build(sample.quota).unwrap();
        let (mut denied, mut now) = (HashMap::new(), Micros::from_secs(1));
        for (key, cost, pause) in steps {
            now = now.saturating_add(Micros::new(sample.period.get().saturating_mul(pause) / 20_000));
            manual_clock.set(now);
            let overflowed = limiter.size().unwrap().overflowed;
            let decision = limiter.check_cost(&key, cost);
            let has_room = limiter.size().unwrap().overflowed == overflowed;
            if denied.get(&key).is_some_and(|until: &Micros| now < *until) {
                prop_assert!(!decision.is_allowed(), "{} {overflow:?}: {key} at {now}", sample.quota);
            }
            // The retry time of one token is a lower bound for any cost.
            if let (1, Some(retry), true) = (cost, decision.retry_after(), has_room) {
                denied.insert(key, now.saturating_add(retry));
            }
        }
    }
}
