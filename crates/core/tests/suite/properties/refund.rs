//! Property 9: a refund never creates a token.

use super::admissions::{AdmittedCall, check_windows, demand};
use super::{is_smooth_rate, starts_at_first_hit};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// Everything that a key grants after a refund is also granted, and no later, by a control key without the reservation.
///
/// Not for windows that start at the first hit, which a reservation starts earlier, nor for a warm-up, which a
/// reservation warms: for these, `unrefunded_charges_stay_within_bound` applies.
#[test]
fn refund_grants_no_more_than_never_charging() {
    let reserved = (costs(), prop_oneof![3 => Just(0), 1 => 1_u64..=2]);
    let between = prop_oneof![3 => few_call_steps().boxed(), 1 => call_steps().boxed()];
    check_property(
        (call_steps(), reserved, between, call_steps()),
        |sample, (before, (cost, bursts), between, after)| {
            if starts_at_first_hit(&sample.quota) || matches!(sample.quota.kind(), AlgorithmKind::WarmUp(_)) {
                return Ok(());
            }
            let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for caller in &before {
                clock.advance(caller.pause);
                clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
            }
            let mut control = key.clone();
            let limit = sample.quota.limit();
            let cost = cost.resolve(limit).saturating_add(limit.saturating_mul(bursts));
            let receipt =
                key.decide(clock.now, Demand::with_max_wait(cost, Micros::MAX).with_overdraft()).receipt;
            if clock.now.saturating_add(key.peek(clock.now, Demand::peek(1)).decision.wait()) == Micros::MAX {
                return Ok(()); // the next admission is beyond the range of time
            }
            compare_with_control(&mut key, &mut control, &sample, &mut clock, &between)?;
            key.refund(clock.now, receipt, receipt.cost);
            compare_with_control(&mut key, &mut control, &sample, &mut clock, &after)
        },
    );
}

/// Runs the calls on the key, and those that it grants on the control key.
fn compare_with_control(
    key: &mut CoreModel,
    control: &mut CoreModel,
    sample: &Sample,
    clock: &mut CallClock,
    calls: &[CallStep],
) -> TestCaseResult {
    for caller in calls {
        clock.advance(caller.pause);
        let demand = caller.demand(sample);
        let decision = key.decide(clock.now, demand).decision;
        clock.record(&decision);
        if decision.is_granted() {
            // Shapers use doubles: rounding may cost a microsecond.
            let slack = Micros::new(if is_smooth_rate(&sample.quota) { 1 } else { 0 });
            let max_wait = demand.max_wait.saturating_add(slack);
            let control_decision = control.decide(clock.now, Demand { max_wait, ..demand }).decision;
            prop_assert!(
                control_decision.is_granted()
                    && control_decision.wait() <= decision.wait().saturating_add(slack),
                "{} at {}: {:?}, control {:?}",
                demand.cost,
                clock.now,
                decision,
                control_decision
            );
        }
    }
    Ok(())
}

/// A refund never reduces what is available, at any later time and after any other calls.
#[test]
fn refund_never_reduces_remaining() {
    let between = prop_oneof![few_call_steps().boxed(), waiting_call_steps().boxed()];
    check_property(
        (waiting_call_steps(), costs(), between, 1_u64..=8),
        |sample, (before, cost, between, share)| {
            let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            let mut run = |key: &mut CoreModel, calls: &[CallStep]| {
                for caller in calls {
                    clock.advance(caller.pause);
                    clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
                }
                clock.now
            };
            let now = run(&mut key, &before);
            let demand = Demand::with_max_wait(cost.resolve(sample.quota.limit()), Micros::MAX);
            let receipt = key.decide(now, demand).receipt;
            let now = run(&mut key, &between);
            let before = key.peek(now, Demand::peek(1)).decision;
            key.refund(now, receipt, receipt.cost.div_ceil(share));
            let after = key.peek(now, Demand::peek(1)).decision;
            prop_assert!(after.remaining() >= before.remaining(), "{:?}, then {:?}", before, after);
            prop_assert!(after.wait() <= before.wait(), "{:?}, then {:?}", before, after);
            prop_assert!(after.reset_after() <= before.reset_after(), "{:?}, then {:?}", before, after);
            Ok(())
        },
    );
}

/// A refund returns at most the cost of its receipt.
#[test]
fn refund_is_capped_at_the_charged_cost() {
    check_property((waiting_call_steps(), costs(), few_call_steps()), |sample, (before, cost, between)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &before {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        let receipt = key.decide(clock.now, Demand::new(cost.resolve(sample.quota.limit()))).receipt;
        for caller in &between {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        let mut greedy = key.clone();
        greedy.refund(clock.now, receipt, receipt.cost.saturating_mul(2).saturating_add(1));
        key.refund(clock.now, receipt, receipt.cost);
        prop_assert_eq!(greedy, key);
        Ok(())
    });
}

/// Charges without their refunds stay within the bound.
#[test]
fn unrefunded_charges_stay_within_bound() {
    let refunds = proptest::collection::vec(
        prop_oneof![2 => Just(None), 3 => (0_usize..4, 1_u64..=8).prop_map(Some)],
        40,
    );
    let inputs = prop_oneof![waiting_call_steps().boxed(), crowded_call_steps().boxed()];
    check_property((inputs, refunds), |sample, (calls, refunds)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut charges: Vec<(AdmittedCall, _)> = Vec::new();
        for (caller, refund) in calls.iter().zip(refunds) {
            clock.advance(caller.pause);
            let demand = demand(&sample, caller);
            let result = key.decide(clock.now, demand);
            clock.record(&result.decision);
            if result.decision.is_granted() {
                let at = clock.now.saturating_add(result.decision.wait());
                charges.push((AdmittedCall { at, cost: demand.cost }, Some(result.receipt)));
            }
            // Refund one of the last charges once, in full or in part.
            if let Some((later, eighths)) = refund
                && let Some(which) = charges.len().checked_sub(later + 1)
                && let Some(receipt) = charges[which].1.take()
            {
                let cost = receipt.cost * eighths / 8;
                key.refund(clock.now, receipt, cost);
                charges[which].0.cost -= cost;
            }
        }
        check_windows(charges.into_iter().map(|(admission, _)| admission).collect(), |length| {
            sample.quota.bound().max_in_window(length)
        })
    });
}

#[test]
fn immediate_cancel_restores_the_same_outcome() {
    check_property((waiting_call_steps(), pauses(), costs()), |sample, (calls, pause, cost)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let demand = Demand::with_max_wait(cost.resolve(sample.quota.limit()), Micros::MAX);
        let first = key.decide(clock.now, demand);
        key.refund(clock.now, first.receipt, first.receipt.cost);
        let second = key.decide(clock.now, demand);
        prop_assert_eq!(first.decision.outcome(), second.decision.outcome());
        Ok(())
    });
}

/// Permits in flight never exceed the limit, and all of them are returned.
#[test]
fn permits_are_conserved() {
    check_property(proptest::collection::vec((costs(), 0_usize..4), 1..40), |sample, calls| {
        let AlgorithmKind::Concurrency(_) = sample.quota.kind() else { return Ok(()) };
        let mut key = CoreModel::new(sample.quota);
        let mut receipts = Vec::new();
        for (cost, give_back) in calls {
            let result = key.decide(sample.start, Demand::new(cost.resolve(sample.quota.limit())));
            if result.decision.outcome() == Outcome::Allow {
                receipts.push(result.receipt);
            }
            for receipt in receipts.drain(..give_back.min(receipts.len())) {
                key.refund(sample.start, receipt, receipt.cost);
            }
            let in_flight: u64 = receipts.iter().map(|receipt| receipt.cost).sum();
            prop_assert!(in_flight <= sample.quota.limit());
        }
        for receipt in receipts.drain(..) {
            key.refund(sample.start, receipt, receipt.cost);
        }
        prop_assert_eq!(key, CoreModel::new(sample.quota));
        Ok(())
    });
}
