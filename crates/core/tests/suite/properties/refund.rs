//! Law 9: a refund never creates a token.

use super::admissions::{AdmittedCall, check_windows, demand};
use super::{is_shaper, starts_at_first_hit};
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// Whatever a key grants after a refund, a twin that never made the reservation grants too, and no later.
///
/// Not for windows that start at the first hit, which a reservation starts earlier, nor for a warm-up, which a
/// reservation warms: there the law is that what is kept stays within the bound.
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
            let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for caller in &before {
                moment.advance(caller.pause);
                moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
            }
            let mut control = key.clone();
            let limit = sample.quota.limit();
            let cost = cost.resolve(limit).saturating_add(limit.saturating_mul(bursts));
            let receipt =
                key.decide(moment.now, Demand::with_max_wait(cost, Micros::MAX).with_overdraft()).receipt;
            if moment.now.plus(key.peek(moment.now, Demand::probe(1)).decision.wait()) == Micros::MAX {
                return Ok(()); // nobody goes again in our time
            }
            compare_with_control(&mut key, &mut control, &sample, &mut moment, &between)?;
            key.refund(moment.now, receipt, receipt.cost);
            compare_with_control(&mut key, &mut control, &sample, &mut moment, &after)
        },
    );
}

/// Asks the key, and of a twin all that the key grants.
fn compare_with_control(
    key: &mut CoreModel,
    control: &mut CoreModel,
    sample: &Sample,
    moment: &mut CallClock,
    story: &[CallStep],
) -> TestCaseResult {
    for caller in story {
        moment.advance(caller.pause);
        let demand = caller.demand(sample);
        let decision = key.decide(moment.now, demand).decision;
        moment.record(&decision);
        if decision.is_granted() {
            // Shapers count in doubles, whose last digit may be a microsecond.
            let slack = Micros::new(if is_shaper(&sample.quota) { 1 } else { 0 });
            let patience = demand.max_wait.plus(slack);
            let control_decision =
                control.decide(moment.now, Demand { max_wait: patience, ..demand }).decision;
            prop_assert!(
                control_decision.is_granted() && control_decision.wait() <= decision.wait().plus(slack),
                "{} at {}: {:?}, its twin {:?}",
                demand.cost,
                moment.now,
                decision,
                control_decision
            );
        }
    }
    Ok(())
}

/// A refund is never a loss either, however late it comes and whoever came in between.
#[test]
fn refund_never_reduces_remaining() {
    let between = prop_oneof![few_call_steps().boxed(), waiting_call_steps().boxed()];
    check_property(
        (waiting_call_steps(), costs(), between, 1_u64..=8),
        |sample, (before, cost, between, share)| {
            let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            let mut tell = |key: &mut CoreModel, story: &[CallStep]| {
                for caller in story {
                    moment.advance(caller.pause);
                    moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
                }
                moment.now
            };
            let now = tell(&mut key, &before);
            let demand = Demand::with_max_wait(cost.resolve(sample.quota.limit()), Micros::MAX);
            let receipt = key.decide(now, demand).receipt;
            let now = tell(&mut key, &between);
            let before = key.peek(now, Demand::probe(1)).decision;
            key.refund(now, receipt, receipt.cost.div_ceil(share));
            let after = key.peek(now, Demand::probe(1)).decision;
            prop_assert!(after.remaining() >= before.remaining(), "{:?}, then {:?}", before, after);
            prop_assert!(after.wait() <= before.wait(), "{:?}, then {:?}", before, after);
            prop_assert!(after.reset_after() <= before.reset_after(), "{:?}, then {:?}", before, after);
            Ok(())
        },
    );
}

/// A receipt is good for what it proves.
#[test]
fn refund_is_capped_at_the_charged_cost() {
    check_property((waiting_call_steps(), costs(), few_call_steps()), |sample, (before, cost, between)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &before {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        let receipt = key.decide(moment.now, Demand::new(cost.resolve(sample.quota.limit()))).receipt;
        for caller in &between {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        let mut greedy = key.clone();
        greedy.refund(moment.now, receipt, receipt.cost.saturating_mul(2).saturating_add(1));
        key.refund(moment.now, receipt, receipt.cost);
        prop_assert_eq!(greedy, key);
        Ok(())
    });
}

/// What is charged and not refunded stays within the bound.
#[test]
fn unrefunded_charges_stay_within_bound() {
    let refunds = proptest::collection::vec(
        prop_oneof![2 => Just(None), 3 => (0_usize..4, 1_u64..=8).prop_map(Some)],
        40,
    );
    let stories = prop_oneof![waiting_call_steps().boxed(), crowded_call_steps().boxed()];
    check_property((stories, refunds), |sample, (story, refunds)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut charges: Vec<(AdmittedCall, _)> = Vec::new();
        for (caller, refund) in story.iter().zip(refunds) {
            moment.advance(caller.pause);
            let demand = demand(&sample, caller);
            let step = key.decide(moment.now, demand);
            moment.record(&step.decision);
            if step.decision.is_granted() {
                let at = moment.now.plus(step.decision.wait());
                charges.push((AdmittedCall { at, cost: demand.cost }, Some(step.receipt)));
            }
            // One of the last gives all or a part back, once.
            if let Some((later, eighths)) = refund
                && let Some(which) = charges.len().checked_sub(later + 1)
                && let Some(receipt) = charges[which].1.take()
            {
                let cost = receipt.cost * eighths / 8;
                key.refund(moment.now, receipt, cost);
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
    check_property((waiting_call_steps(), pauses(), costs()), |sample, (story, pause, cost)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &story {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        moment.advance(pause);
        let demand = Demand::with_max_wait(cost.resolve(sample.quota.limit()), Micros::MAX);
        let first = key.decide(moment.now, demand);
        key.refund(moment.now, first.receipt, first.receipt.cost);
        let second = key.decide(moment.now, demand);
        prop_assert_eq!(first.decision.outcome(), second.decision.outcome());
        Ok(())
    });
}

/// Permits: what is in flight never exceeds the limit, and all of it comes back.
#[test]
fn permits_are_conserved() {
    check_property(proptest::collection::vec((costs(), 0_usize..4), 1..40), |sample, story| {
        let AlgorithmKind::Concurrency(_) = sample.quota.kind() else { return Ok(()) };
        let mut key = CoreModel::new(sample.quota);
        let mut receipts = Vec::new();
        for (cost, give_back) in story {
            let step = key.decide(sample.start, Demand::new(cost.resolve(sample.quota.limit())));
            if step.decision.outcome() == Outcome::Allow {
                receipts.push(step.receipt);
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
