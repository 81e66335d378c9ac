//! Tiers: the call selects the tier that limits a key, and a key that changes its tier keeps its usage.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::time::Duration;
use tidegate_core::{CarryOver, Demand, Micros, Quota, StateEntries};
use tidegate_limiter::{Capacity, Clock, Limiter, LimiterBuilder, ManualClock};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

fn small_builder() -> (LimiterBuilder, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(8)), manual_clock)
}

fn quotas(texts: &[&str]) -> Vec<Quota> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// The pause, the cost, the tier, and whether the key is reset before (zero).
type TierCall = (CallPause, CallCost, usize, u8);

/// A key that changes its tier keeps its usage.
#[test]
fn tiers_share_key_state() {
    let tier = || prop_oneof![3 => 0_usize..2, 1 => 0_usize..3];
    let cases = |samples: BoxedStrategy<Sample>| {
        let call = (pauses(), costs(), tier(), 0_u8..8);
        (proptest::collection::vec(samples, 2..4), proptest::collection::vec(call, 1..30))
    };
    for (name, samples) in every_algorithm() {
        let law = |(samples, calls): (Vec<Sample>, Vec<TierCall>)| -> TestCaseResult {
            let (builder, manual_clock) = small_builder();
            let mut call_clock = CallClock::new(&samples[0]);
            manual_clock.set(call_clock.now);
            let quotas: Vec<Quota> = samples.iter().map(|sample| sample.quota).collect();
            let limiter = builder.build_tiers(&quotas).unwrap();
            let mut model = StateEntries::new();
            for (pause, cost, tier, reset) in calls {
                let tier = tier % quotas.len();
                call_clock.advance(pause);
                manual_clock.set(call_clock.now);
                let bucket = limiter.blocking().key("k").tier(tier).unwrap();
                if reset == 0 {
                    bucket.reset().unwrap();
                    model.reset();
                }
                let demand = match name {
                    "concurrency" => Demand::peek(cost.resolve(quotas[tier].limit())),
                    _ => Demand::new(cost.resolve(quotas[tier].limit())),
                };
                let result = model.decide(&[quotas[tier]], CarryOver::Keep, call_clock.now, demand).remove(0);
                let decision = bucket.check(demand.cost);
                prop_assert_eq!(decision, result.decision, "{} at {}", demand.cost, call_clock.now);
                prop_assert_eq!(decision.quota(), tier);
                call_clock.record(&decision);
            }
            Ok(())
        };
        let result = runner().run(&cases(samples), law);
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[test]
fn permits_of_all_tiers_return() {
    let (builder, _manual_clock) = small_builder();
    let limiter = builder.build_tiers(&quotas(&["2 at once", "5 at once"])).unwrap();
    let tier = |tier| limiter.blocking().key("k").tier(tier).unwrap();
    let (free, pro) = (tier(0).permit(), tier(1).permit());
    assert!(free.decision().is_allowed() && pro.decision().is_allowed());
    drop(free);
    assert_eq!(tier(1).peek(0).remaining(), 4);
    drop(pro);
    assert_eq!(tier(0).peek(0).remaining(), 2);
    // A permit that is in use during a reset of its key stays in use, under its own tier.
    let permit = tier(1).permit();
    tier(1).reset().unwrap();
    assert_eq!([0, 1].map(|index| tier(index).peek(0).remaining()), [1, 4]);
    drop(permit);
    assert_eq!([0, 1].map(|index| tier(index).peek(0).remaining()), [2, 5]);
}

#[test]
fn tokens_of_previous_tier_are_not_refunded() {
    let (builder, _manual_clock) = small_builder();
    let limiter = builder.build_tiers(&quotas(&["10/min", "20/min"])).unwrap();
    let tier = |tier| limiter.blocking().key("k").tier(tier).unwrap();
    let tokens = tier(0).reserve(4, Duration::ZERO);
    assert_eq!(tier(1).check(1).remaining(), 15);
    drop(tokens);
    assert_eq!(tier(1).peek(0).remaining(), 15);
}

/// Every tier changes to its successor, and the usage of the key with the tier that wrote it.
#[test]
fn tier_change_keeps_key_state() {
    for how in [CarryOver::Keep, CarryOver::Reset] {
        let (builder, manual_clock) = small_builder();
        let (old, new) = (quotas(&["10/min", "20/min", "40/min"]), quotas(&["7/min", "33/min", "41/min"]));
        let limiter = builder.build_tiers(&old).unwrap();
        manual_clock.set(Micros::from_secs(7));
        for (tier, quota) in old.iter().enumerate() {
            assert!(limiter.blocking().key(&tier).tier(tier).unwrap().check(quota.limit() / 2).is_allowed());
        }
        limiter.change_all(&new, how).unwrap();
        assert_eq!(limiter.quotas(), new);
        for (tier, (old, new)) in old.iter().zip(&new).enumerate() {
            let mut model = CoreModel::new(*old);
            model.decide(Micros::from_secs(7), Demand::new(old.limit() / 2));
            model.change(Micros::from_secs(7), *new, how);
            let expected = model.peek(Micros::from_secs(7), Demand::peek(1)).decision;
            assert_eq!(
                limiter.blocking().key(&tier).tier(tier).unwrap().peek(1),
                expected,
                "tier {tier} {how:?}"
            );
        }
    }
}
