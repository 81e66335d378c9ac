//! Overrides: a key has a quota of its own until it ends, and keeps its usage.

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::time::Duration;
use tidegate_core::{CarryOver, Demand, Micros, Quota, StateEntries};
use tidegate_limiter::{
    Capacity, Clock, Limiter, LimiterBuilder, MAX_OVERRIDE_QUOTAS, ManualClock, QuotaOverride,
};
use tidegate_testkit::strategy::*;

fn small_builder() -> (LimiterBuilder, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(64)).overridable(), manual_clock)
}

fn set(limiter: &Limiter, key: &str, quota: &str, until: Micros) {
    let change = QuotaOverride { quota: quota.parse().unwrap(), until };
    let rejected = limiter.apply_overrides(&[(limiter.override_id(key), Some(change))]);
    assert!(rejected.is_empty(), "{quota}: {}", rejected[0].1);
}

fn remove(limiter: &Limiter, key: &str) {
    assert!(limiter.apply_overrides(&[(limiter.override_id(key), None)]).is_empty());
}

/// The pause, the cost, the index of the quota in force, and how the key is checked.
type OverrideCall = (CallPause, CallCost, usize, u8);

/// A key decides as if the quota in force were a quota of the policy, and keeps its usage through every change.
#[test]
fn override_keeps_the_usage_of_its_key() {
    for (name, samples) in every_algorithm() {
        let call = (pauses(), costs(), prop_oneof![3 => 0_usize..2, 1 => 0_usize..4], 0_u8..12);
        let cases = (proptest::collection::vec(samples, 2..5), proptest::collection::vec(call, 1..30));
        let law = |(samples, calls): (Vec<Sample>, Vec<OverrideCall>)| -> TestCaseResult {
            let (builder, manual_clock) = small_builder();
            let mut call_clock = CallClock::new(&samples[0]);
            manual_clock.set(call_clock.now);
            let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let limiter = builder.build(quotas[0]).unwrap();
            let mut model = StateEntries::new();
            for (pause, cost, index, how) in calls {
                call_clock.advance(pause);
                manual_clock.set(call_clock.now);
                let wanted = quotas[index % quotas.len()];
                let is_possible = wanted != quotas[0] && limiter.check_override(&wanted).is_ok();
                let until = match how {
                    // One that ends now does not apply.
                    0 => call_clock.now,
                    _ => call_clock.now.saturating_add(Micros::new(1)),
                };
                let change = is_possible.then_some(QuotaOverride { quota: wanted, until });
                prop_assert!(limiter.apply_overrides(&[(limiter.override_id("k"), change)]).is_empty());
                let quota = if is_possible && how > 0 { wanted } else { quotas[0] };
                if how == 1 {
                    limiter.blocking().key("k").reset().unwrap();
                    model.reset();
                }
                let demand = match name {
                    "concurrency" => Demand::peek(cost.resolve(quota.limit())),
                    _ => Demand::new(cost.resolve(quota.limit())),
                };
                let result = model.decide(&[quota], CarryOver::Keep, call_clock.now, demand).remove(0);
                let decision = match how {
                    2..=6 => limiter.check_cost("k", demand.cost),
                    7 => limiter.bucket_by_id(limiter.key_id("k").unwrap(), 0).unwrap().check(demand.cost),
                    8 => {
                        let check = limiter.prepare("k").cost(demand.cost);
                        tidegate_limiter::BlockingLimiter::decide_all(&[check])[0]
                    }
                    _ => limiter.blocking().key("k").check(demand.cost),
                };
                let expected = result.decision.with_quota(decision.quota());
                prop_assert_eq!(decision, expected, "{} under {} at {}", demand.cost, quota, call_clock.now);
                prop_assert_eq!(decision.quota() == 0, quota == quotas[0]);
                call_clock.record(&decision);
            }
            Ok(())
        };
        let result = runner().run(&cases, law);
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn override_of_a_key_is_no_tier_that_calls_select() {
    let (builder, _clock) = small_builder();
    let limiter = builder.build_tiers(&["2/h".parse().unwrap(), "4/h".parse().unwrap()]).unwrap();
    set(&limiter, "ann", "9/h", Micros::MAX);
    assert_eq!((limiter.tiers(), limiter.quotas().len(), limiter.override_quotas().len()), (2, 2, 1));
    let key = |key| limiter.blocking().key(key);
    assert!(key("bob").tier(2).is_none());
    assert_eq!(key("bob").tier(1).unwrap().peek(1).limit(), 4);
    for tier in [0, 1] {
        assert_eq!(key("ann").tier(tier).unwrap().peek(1).limit(), 9, "the override has precedence");
    }
    remove(&limiter, "ann");
    assert_eq!(key("ann").tier(1).unwrap().peek(1).limit(), 4);
}

#[test]
fn change_of_the_declared_quota_keeps_overrides() {
    let (builder, _clock) = small_builder();
    let limiter = builder.build("2/h").unwrap();
    set(&limiter, "ann", "5/h", Micros::MAX);
    assert!(limiter.check_cost("ann", 4).is_allowed());
    limiter.change("3/h", CarryOver::Keep).unwrap();
    assert_eq!((limiter.check("bob").remaining(), limiter.check("ann").remaining()), (2, 0));
    // An unused quota makes room for another one. Two quotas with one tag are rejected.
    for number in 0..3 * MAX_OVERRIDE_QUOTAS {
        let change =
            QuotaOverride { quota: format!("{}/h", 100 + 3 * number).parse().unwrap(), until: Micros::MAX };
        let _rejected = limiter.apply_overrides(&[(limiter.override_id("bob"), Some(change))]);
    }
    assert_eq!(limiter.override_quotas().len(), MAX_OVERRIDE_QUOTAS);
    set(&limiter, "bob", "9999/h", Micros::MAX);
    assert_eq!(limiter.blocking().key("bob").peek(0).remaining(), 9_998);
    assert!(!limiter.check("ann").is_allowed());
    // A limiter that replaces it has the usage.
    let next = Limiter::builder().capacity(Capacity::Keys(64)).overridable().predecessor(&limiter);
    let next = next.clock(Clock::manual().0).build("6/h").unwrap();
    next.take_over(&limiter);
    assert_eq!(next.check("ann").remaining(), 0, "five of six are used");
}

#[test]
fn reservation_under_an_override_is_refunded_after_it() {
    let (builder, _clock) = small_builder();
    let limiter = builder.build("2/h").unwrap();
    set(&limiter, "ann", "5/h", Micros::MAX);
    let reserved = limiter.blocking().key("ann").reserve(4, Duration::ZERO);
    remove(&limiter, "ann");
    assert!(!limiter.check("ann").is_allowed());
    drop(reserved);
    assert_eq!(limiter.check("ann").remaining(), 1);
}

#[test]
fn limiters_without_overrides_reject_them() {
    for limiter in [
        Limiter::new("2/h").unwrap(),
        small_builder().0.build_all(&["2/h".parse().unwrap(), "9/d".parse().unwrap()]).unwrap(),
    ] {
        assert!(!limiter.is_overridable());
        let change = QuotaOverride { quota: "5/h".parse().unwrap(), until: Micros::MAX };
        assert_eq!(limiter.apply_overrides(&[(1, Some(change))]).len(), 1);
        assert!(limiter.check_override(&change.quota).is_err());
    }
}

/// Threads that check keys see each of them under one quota or the other while overrides change.
#[test]
fn overrides_change_while_keys_are_checked() {
    let limiter = Limiter::builder().overridable().build("200000/h").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for number in 0..20_000_u64 {
                    let limit = limiter.check(&(number % 64)).limit();
                    assert!(limit == 200_000 || (300_000..300_100).contains(&limit), "{limit}");
                }
            });
        }
        for number in 0..2_000_u64 {
            let id = limiter.override_id(&(number % 64));
            let quota: Quota = format!("{}/h", 300_000 + number % 100).parse().unwrap();
            let change = (number % 3 != 0).then_some(QuotaOverride { quota, until: Micros::MAX });
            let _rejected = limiter.apply_overrides(&[(id, change)]);
        }
    });
}
