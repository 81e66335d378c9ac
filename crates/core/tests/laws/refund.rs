//! Law 9: a refund never creates a token.

use crate::admissions::{Admission, check, demand};
use crate::starts_at_first_hit;
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{Demand, Kind, Micros, Outcome};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// Whatever a key grants after a refund, a twin that never made the reservation grants too.
///
/// Not for windows that start at the first hit, which a reservation starts earlier, nor for a warm-up, which a
/// reservation warms: there the law is the next one.
#[test]
fn after_a_refund_nothing_is_granted_that_a_twin_without_it_would_deny() {
    hold((moves(), costs(), moves(), moves()), |sample, (before, cost, between, after)| {
        if starts_at_first_hit(&sample.quota) || matches!(sample.quota.kind(), Kind::WarmUp(_)) {
            return Ok(());
        }
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        for caller in &before {
            moment.pass(caller.pause);
            moment.hear(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        let mut twin = key.clone();
        let reserved = key.decide(moment.now, Demand::within(cost.under(sample.quota.limit()), Micros::MAX));
        follow(&mut key, &mut twin, &sample, &mut moment, &between)?;
        key.refund(moment.now, reserved.receipt, reserved.receipt.cost);
        follow(&mut key, &mut twin, &sample, &mut moment, &after)
    });
}

/// Asks the key, and of a twin all that the key grants.
fn follow(
    key: &mut Plain,
    twin: &mut Plain,
    sample: &Sample,
    moment: &mut Moment,
    story: &[Move],
) -> TestCaseResult {
    for caller in story {
        moment.pass(caller.pause);
        let demand = caller.demand(sample);
        let decision = key.decide(moment.now, demand).decision;
        moment.hear(&decision);
        if decision.is_allowed() {
            let twins = twin.decide(moment.now, demand).decision;
            prop_assert!(twins.is_allowed(), "{} at {}: {:?}", demand.cost, moment.now, twins);
        }
    }
    Ok(())
}

/// What is charged and not refunded stays within the bound.
#[test]
fn what_is_kept_stays_within_the_bound() {
    let refunds = proptest::collection::vec(
        prop_oneof![3 => Just(None), 2 => (0_usize..6, 1_u64..=8).prop_map(Some)],
        40,
    );
    hold((patient_moves(), refunds), |sample, (story, refunds)| {
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        let mut kept: Vec<(Admission, _)> = Vec::new();
        for (caller, refund) in story.iter().zip(refunds) {
            moment.pass(caller.pause);
            let demand = demand(&sample, caller);
            let step = key.decide(moment.now, demand);
            moment.hear(&step.decision);
            if step.decision.is_granted() {
                let at = moment.now.plus(step.decision.wait());
                kept.push((Admission { at, cost: demand.cost }, Some(step.receipt)));
            }
            // Somebody before gives all or a part back, once.
            if let Some((which, eighths)) = refund
                && which < kept.len()
                && let Some(receipt) = kept[which].1.take()
            {
                let cost = receipt.cost * eighths / 8;
                key.refund(moment.now, receipt, cost);
                kept[which].0.cost -= cost;
            }
        }
        check(kept.into_iter().map(|(admission, _)| admission).collect(), |length| {
            sample.quota.bound().in_any(length)
        })
    });
}

#[test]
fn who_cancels_at_once_gets_the_same_place_again() {
    hold((patient_moves(), pauses(), costs()), |sample, (story, pause, cost)| {
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        for caller in &story {
            moment.pass(caller.pause);
            moment.hear(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        moment.pass(pause);
        let demand = Demand::within(cost.under(sample.quota.limit()), Micros::MAX);
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
    hold(proptest::collection::vec((costs(), 0_usize..4), 1..40), |sample, story| {
        let Kind::Concurrency(_) = sample.quota.kind() else { return Ok(()) };
        let mut key = Plain::new(sample.quota);
        let mut held = Vec::new();
        for (cost, give_back) in story {
            let step = key.decide(sample.start, Demand::now(cost.under(sample.quota.limit())));
            if step.decision.outcome() == Outcome::Allow {
                held.push(step.receipt);
            }
            for receipt in held.drain(..give_back.min(held.len())) {
                key.refund(sample.start, receipt, receipt.cost);
            }
            let in_flight: u64 = held.iter().map(|receipt| receipt.cost).sum();
            prop_assert!(in_flight <= sample.quota.limit());
        }
        for receipt in held.drain(..) {
            key.refund(sample.start, receipt, receipt.cost);
        }
        prop_assert_eq!(key, Plain::new(sample.quota));
        Ok(())
    });
}
