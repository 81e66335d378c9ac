//! Properties 1, 4 and 5: equal demands have equal results, a denial or a probe changes nothing, and two costs
//! equal their sum.

use super::is_smooth_rate;
use proptest::prelude::*;
use tidegate_core::{AlgorithmState, Demand, Effect, Micros, Outcome};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn decisions_are_equal_at_any_state_offset() {
    check_property((waiting_call_steps(), 0_usize..4), |sample, (calls, offset)| {
        let quota = sample.quota;
        let (mut key, mut clock) = (CoreModel::new(quota), CallClock::new(&sample));
        let mut shared = vec![u64::MAX; offset];
        shared.extend(vec![0; quota.state_len()]);
        for caller in &calls {
            clock.advance(caller.pause);
            let demand = caller.demand(&sample);
            let result = key.decide(clock.now, demand);
            let shared_result = quota.decide(&mut shared.as_mut_slice().offset(offset), clock.now, demand);
            prop_assert_eq!(result, shared_result);
            clock.record(&result.decision);
        }
        prop_assert!(key.state_words().zip(&shared[offset..]).all(|(left, right)| left == *right));
        prop_assert!(shared[..offset].iter().all(|word| *word == u64::MAX));
        Ok(())
    });
}

#[test]
fn denials_and_peeks_leave_state_unchanged() {
    check_property(waiting_call_steps(), |sample, calls| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            let demand = caller.demand(&sample);
            let before = key.clone();
            let peeked = key.decide(clock.now, Demand { effect: Effect::Peek, ..demand });
            prop_assert_eq!(&key, &before);
            prop_assert_eq!(peeked.receipt.cost, 0);

            let result = key.decide(clock.now, demand);
            prop_assert_eq!(result.decision.outcome(), peeked.decision.outcome(), "the peek differs");
            let charged = result.decision.is_granted() && demand.cost > 0;
            prop_assert_eq!(result.receipt.cost > 0, charged);
            if !charged {
                prop_assert_eq!(&key, &before);
            }
            clock.record(&result.decision);
        }
        Ok(())
    });
}

/// Not for the shapers, where the second call waits for the first.
#[test]
fn two_costs_equal_their_sum() {
    check_property((waiting_call_steps(), pauses(), costs(), costs()), |sample, (calls, pause, a, b)| {
        if is_smooth_rate(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let (a, b) = (a.resolve(sample.quota.limit()), b.resolve(sample.quota.limit()));

        let mut in_parts = key.clone();
        let first = in_parts.decide(clock.now, Demand::new(a)).decision;
        let second = in_parts.decide(clock.now, Demand::new(b)).decision;
        let both = key.decide(clock.now, Demand::new(a + b)).decision;
        prop_assert_eq!(first.is_allowed() && second.is_allowed(), both.is_allowed());
        if both.is_allowed() {
            prop_assert_eq!(second, both);
            prop_assert_eq!(in_parts, key);
        }
        Ok(())
    });
}

/// Not for the shapers, which admit any cost without debt.
#[test]
fn remaining_can_be_charged_exactly() {
    check_property((waiting_call_steps(), pauses()), |sample, (calls, pause)| {
        if is_smooth_rate(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let remaining = key.peek(clock.now, Demand::peek(0)).decision.remaining();
        prop_assert!(!key.peek(clock.now, Demand::new(remaining + 1)).decision.is_granted());
        // While others wait, nothing remains, and even a cost of zero would be queued.
        if remaining > 0 {
            let taken = key.decide(clock.now, Demand::new(remaining)).decision;
            prop_assert_eq!(taken.outcome(), Outcome::Allow);
            prop_assert_eq!(taken.remaining(), 0);
        }
        Ok(())
    });
}

/// A remaining amount above zero means that one more call is allowed, for the shapers too.
#[test]
fn remaining_is_zero_while_waiting() {
    check_property((waiting_call_steps(), pauses()), |sample, (calls, pause)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let peeked = key.peek(clock.now, Demand::peek(1)).decision;
        prop_assert!(peeked.remaining() == 0 || peeked.is_allowed(), "{:?}", peeked);
        Ok(())
    });
}

/// A forced charge far above the maximum: the debt stays at 71 years, and its end is an exact number.
#[test]
fn forced_charges_saturate() {
    let mut key = CoreModel::new("1/d burst 5000".parse().unwrap());
    let mut owed = Micros::ZERO;
    for _ in 0..10_000 {
        owed = key.decide(Micros::ZERO, Demand::forced(5_000)).decision.reset_after();
    }
    assert_eq!(owed, Micros::new(1 << 51));
    assert!(!key.decide(Micros::ZERO, Demand::new(1)).decision.is_allowed());
}
