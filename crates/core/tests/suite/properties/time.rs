//! Laws 6 and 7: time that runs backwards admits no more, and a state that is forgotten was never seen.

use super::admissions::{AdmittedCall, check_windows, demand};
use super::{is_concurrency, is_shaper};
use proptest::prelude::*;
use tidegate_core::{Demand, Micros};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn clock_going_back_grants_nothing_extra() {
    check_property((waiting_call_steps(), costs(), 1_u64..=24), |sample, (story, cost, twelfths)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &story {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        // The last one that was counted is not later than now: standing still means asking now.
        let back = Micros::new(sample.period.get() * twelfths / 12);
        let question = CallStep { pause: CallPause::None, cost, max_wait: MaxWait::None }.demand(&sample);
        for earlier in [moment.now.since(Micros::new(1)), moment.now.since(back), Micros::ZERO] {
            let then = key.peek(earlier, question).decision;
            let still = key.peek(moment.now, question).decision;
            prop_assert!(still.is_allowed() || !then.is_allowed(), "{} at {}", question.cost, earlier);
        }
        Ok(())
    });
}

#[test]
fn jumping_clock_stays_within_bound() {
    let jumps = proptest::collection::vec(0_u64..=18, 40);
    check_property((call_steps(), jumps), |sample, (story, jumps)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut admissions = Vec::new();
        for (caller, twelfths) in story.iter().zip(jumps) {
            moment.advance(caller.pause);
            // The clock shows less than has really passed, on and off.
            let back = if twelfths > 12 { 0 } else { sample.period.get() * twelfths / 12 };
            let shown = moment.now.since(Micros::new(back));
            let demand = demand(&sample, caller);
            let decision = key.decide(shown, demand).decision;
            moment.record(&decision);
            if decision.is_allowed() {
                admissions.push(AdmittedCall { at: moment.now, cost: demand.cost });
            }
        }
        // What is admitted early by the clock that lags was due by the time that has really passed.
        let total: u64 = admissions.iter().map(|admission| admission.cost).sum();
        let length = moment.now.since(sample.start).plus(sample.period).plus(Micros::new(1));
        prop_assert!(total <= sample.quota.bound().max_in_window(length));
        Ok(())
    });
}

/// A clock that was once ahead and now lags adds no burst to the one that it has already let through.
#[test]
fn lagging_clock_admits_one_burst() {
    check_property((call_steps(), 0_u64..=1_000_000_000), |sample, (story, ahead)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let latest = sample.start.plus(Micros::new(ahead));
        key.decide(latest, Demand::new(1));
        let mut admissions = vec![AdmittedCall { at: latest, cost: 1 }];
        for caller in &story {
            moment.advance(caller.pause);
            let demand = demand(&sample, caller);
            let decision = key.decide(moment.now.min(latest), demand).decision;
            moment.record(&decision);
            if decision.is_allowed() {
                admissions.push(AdmittedCall { at: latest, cost: demand.cost });
            }
        }
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))
    });
}

/// Not for the shapers, who say a microsecond or two more than their doubles need, nor for permits, which no time
/// gives back.
#[test]
fn key_is_limited_until_its_reset() {
    let refunds = proptest::collection::vec(any::<bool>(), 40);
    check_property((waiting_call_steps(), refunds), |sample, (story, refunds)| {
        if is_shaper(&sample.quota) || is_concurrency(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for (caller, refund) in story.iter().zip(refunds) {
            moment.advance(caller.pause);
            let step = key.decide(moment.now, caller.demand(&sample));
            moment.record(&step.decision);
            if refund {
                key.refund(moment.now, step.receipt, step.receipt.cost);
            }
        }
        let all = Demand::probe(sample.quota.limit());
        let look = key.peek(moment.now, all).decision;
        let reset = moment.now.plus(look.reset_after());
        if reset == Micros::MAX || look.reset_after() == Micros::ZERO {
            return Ok(());
        }
        prop_assert!(key.peek(reset, all).decision.is_allowed());
        prop_assert!(!key.peek(reset.since(Micros::new(1)), all).decision.is_allowed(), "{:?}", look);
        Ok(())
    });
}

#[test]
fn key_is_fresh_after_its_reset() {
    let refunds = proptest::collection::vec(any::<bool>(), 40);
    check_property(
        (waiting_call_steps(), refunds, pauses(), waiting_call_steps()),
        |sample, (story, refunds, pause, later)| {
            let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for (caller, refund) in story.iter().zip(refunds) {
                moment.advance(caller.pause);
                let step = key.decide(moment.now, caller.demand(&sample));
                moment.record(&step.decision);
                if refund {
                    key.refund(moment.now, step.receipt, step.receipt.cost);
                }
            }
            let reset = key.peek(moment.now, Demand::probe(0)).decision.reset_after();
            if reset.get() > 1 << 51 {
                return Ok(());
            }
            moment.now = moment.now.plus(reset);
            moment.advance(pause);
            let mut new = CoreModel::new(sample.quota);
            for caller in &later {
                moment.advance(caller.pause);
                let demand = caller.demand(&sample);
                let decision = key.decide(moment.now, demand).decision;
                prop_assert_eq!(
                    decision,
                    new.decide(moment.now, demand).decision,
                    "{} at {}",
                    demand.cost,
                    moment.now
                );
                moment.record(&decision);
            }
            Ok(())
        },
    );
}
