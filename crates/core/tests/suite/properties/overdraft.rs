//! Credit and force: what goes before its time is repaid before anybody else goes.

use super::admissions::{AdmittedCall, check_windows};
use super::{is_concurrency, is_shaper};
use proptest::prelude::*;
use tidegate_core::{Demand, LARGEST_EXACT, Micros, Outcome, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// A cost over the limit goes when a full burst would, and until the next one goes as much time passes as both need.
#[test]
fn overdraft_is_repaid() {
    check_property(
        (waiting_call_steps(), pauses(), 0_u64..=8, 1_u64..=5),
        |sample, (story, pause, eighths, bursts)| {
            let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for caller in &story {
                moment.advance(caller.pause);
                moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
            }
            moment.advance(pause);
            let limit = sample.quota.limit();
            let cost =
                CallCost::LimitEighths(eighths).resolve(limit).saturating_add(limit.saturating_mul(bursts));
            let full = key.peek(moment.now, Demand::new(limit)).decision;
            let credit = key.decide(moment.now, Demand::new(cost).with_overdraft()).decision;
            if credit.outcome() == Outcome::Deny(Retry::Never) {
                return Ok(()); // slots have no credit, and more than can be counted is not given
            }
            prop_assert_eq!(credit.outcome(), full.outcome(), "{} where {} fit", cost, limit);
            if !credit.is_allowed() {
                return Ok(());
            }
            prop_assert_eq!(credit.remaining(), 0);
            let next = key.peek(moment.now, Demand::new(1)).decision.retry_after();
            let next = next.unwrap_or(Micros::ZERO);
            if moment.now.plus(next) == Micros::MAX {
                return Ok(()); // not in our time
            }
            // A shaper's bound is one of single calls, on top of which comes one of any size.
            let most = sample.quota.bound().max_in_window(next.plus(Micros::new(1)));
            prop_assert!(cost < most, "{} and one more after {}, at most {}", cost, next, most);
            Ok(())
        },
    );
}

/// Who went on credit does not wait, so a part of it can be given back, and what is owed is the rest.
#[test]
fn overdraft_can_be_partly_refunded() {
    let mut key = CoreModel::new("10/s".parse().unwrap());
    let step = key.decide(Micros::ZERO, Demand::new(30).with_overdraft());
    assert!(step.decision.is_allowed());
    key.refund(Micros::ZERO, step.receipt, 15);
    let next = key.decide(Micros::ZERO, Demand::new(1)).decision;
    assert_eq!(next.outcome(), Outcome::Deny(Retry::After(Micros::from_millis(600))));
}

/// Work that is already done is charged whatever the state is: together with what others are granted it stays within
/// the bound, as late as it was told to go.
#[test]
fn forced_charges_count_toward_the_bound() {
    let forced = proptest::collection::vec(any::<bool>(), 40);
    let stories = prop_oneof![waiting_call_steps().boxed(), crowded_call_steps().boxed()];
    check_property((stories, forced), |sample, (story, forced)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut admissions = Vec::new();
        for (caller, forced) in story.iter().zip(forced) {
            moment.advance(caller.pause);
            let demand = caller.demand(&sample);
            let most = if is_shaper(&sample.quota) { 1 } else { sample.quota.limit() };
            let cost = demand.cost.min(most);
            let demand = if forced { Demand::forced(cost) } else { Demand { cost, ..demand } };
            let decision = key.decide(moment.now, demand).decision;
            moment.record(&decision);
            if key.state_words().any(|word| word == LARGEST_EXACT) || decision.reset_after().get() >= 1 << 51
            {
                return Ok(()); // more is owed than can be counted, and the rest is forgiven
            }
            prop_assert!(!forced || decision.is_granted() || is_concurrency(&sample.quota), "{:?}", decision);
            if decision.is_granted() {
                admissions.push(AdmittedCall { at: moment.now.plus(decision.wait()), cost });
            }
        }
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))
    });
}

/// However large it is, work that is already done is charged: somebody has to wait for it.
#[test]
fn settled_cost_of_any_size_is_charged() {
    let costs = prop_oneof![1_u64..=3, 1_000_u64..=100_000, Just(1 << 40), Just(1 << 52), Just(u64::MAX)];
    check_property((waiting_call_steps(), pauses(), costs), |sample, (story, pause, cost)| {
        if is_concurrency(&sample.quota) {
            return Ok(()); // permits are held, not settled
        }
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &story {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        moment.advance(pause);
        let limit = sample.quota.limit();
        let before = key.peek(moment.now, Demand::probe(0)).decision;
        let forced = key.decide(moment.now, Demand::forced(cost)).decision;
        prop_assert!(forced.is_granted(), "{:?}", forced);
        let after = key.peek(moment.now, Demand::new(1)).decision;
        prop_assert!(after.remaining() <= before.remaining());
        // A shaper cuts debts to whole microseconds.
        if cost > limit.saturating_mul(2) && !is_shaper(&sample.quota) {
            prop_assert!(!after.is_allowed(), "{} of {} and another one: {}", cost, limit, after);
        }
        // And it is repaid, unless that takes longer than there is time.
        let reset = key.peek(moment.now, Demand::probe(0)).decision.reset_after();
        if moment.now.plus(reset).get() < 1 << 52 {
            let then = moment.now.plus(reset);
            prop_assert!(key.peek(then, Demand::new(1)).decision.is_allowed(), "never repaid");
        }
        Ok(())
    });
}

/// What a charge could not lift the level by is not given back either.
#[test]
fn refund_of_settled_cost_creates_no_tokens() {
    check_property((crowded_call_steps(), Just(u64::MAX)), |sample, (story, cost)| {
        if is_concurrency(&sample.quota) || is_shaper(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &story {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        let before = key.peek(moment.now, Demand::probe(0)).decision.remaining();
        let receipt = key.decide(moment.now, Demand::forced(cost)).receipt;
        key.refund(moment.now, receipt, cost);
        prop_assert!(key.peek(moment.now, Demand::probe(0)).decision.remaining() <= before);
        Ok(())
    });
}
