//! Properties 6 and 7: a clock that goes back admits no more, and an expired state is equivalent to an unused key.

use super::admissions::{AdmittedCall, check_windows, demand};
use super::{is_concurrency, is_smooth_rate};
use proptest::prelude::*;
use tidegate_core::{Demand, Micros};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn clock_going_back_grants_nothing_extra() {
    check_property((waiting_call_steps(), costs(), 1_u64..=24), |sample, (calls, cost, twelfths)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        // The last counted call is not later than now, so a clock that stopped shows now.
        let back = Micros::new(sample.period.get() * twelfths / 12);
        let demand = CallStep { pause: CallPause::None, cost, max_wait: MaxWait::None }.demand(&sample);
        for earlier in
            [clock.now.saturating_sub(Micros::new(1)), clock.now.saturating_sub(back), Micros::ZERO]
        {
            let then = key.peek(earlier, demand).decision;
            let still = key.peek(clock.now, demand).decision;
            prop_assert!(still.is_allowed() || !then.is_allowed(), "{} at {}", demand.cost, earlier);
        }
        Ok(())
    });
}

#[test]
fn jumping_clock_stays_within_bound() {
    let jumps = proptest::collection::vec(0_u64..=18, 40);
    check_property((call_steps(), jumps), |sample, (calls, jumps)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut admissions = Vec::new();
        for (caller, twelfths) in calls.iter().zip(jumps) {
            clock.advance(caller.pause);
            // The clock lags behind real time, on and off.
            let back = if twelfths > 12 { 0 } else { sample.period.get() * twelfths / 12 };
            let shown = clock.now.saturating_sub(Micros::new(back));
            let demand = demand(&sample, caller);
            let decision = key.decide(shown, demand).decision;
            clock.record(&decision);
            if decision.is_allowed() {
                admissions.push(AdmittedCall { at: clock.now, cost: demand.cost });
            }
        }
        // A call that the lagging clock admits is also due in real time.
        let total: u64 = admissions.iter().map(|admission| admission.cost).sum();
        let length = clock
            .now
            .saturating_sub(sample.start)
            .saturating_add(sample.period)
            .saturating_add(Micros::new(1));
        prop_assert!(total <= sample.quota.bound().max_in_window(length));
        Ok(())
    });
}

/// A clock that was ahead once and then lags adds no second burst.
#[test]
fn lagging_clock_admits_one_burst() {
    check_property((call_steps(), 0_u64..=1_000_000_000), |sample, (calls, ahead)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let latest = sample.start.saturating_add(Micros::new(ahead));
        key.decide(latest, Demand::new(1));
        let mut admissions = vec![AdmittedCall { at: latest, cost: 1 }];
        for caller in &calls {
            clock.advance(caller.pause);
            let demand = demand(&sample, caller);
            let decision = key.decide(clock.now.min(latest), demand).decision;
            clock.record(&decision);
            if decision.is_allowed() {
                admissions.push(AdmittedCall { at: latest, cost: demand.cost });
            }
        }
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))
    });
}

/// Not for the shapers, which report a microsecond or two more than their doubles need, nor for permits, which
/// time does not release.
#[test]
fn key_is_limited_until_its_reset() {
    let refunds = proptest::collection::vec(any::<bool>(), 40);
    check_property((waiting_call_steps(), refunds), |sample, (calls, refunds)| {
        if is_smooth_rate(&sample.quota) || is_concurrency(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for (caller, refund) in calls.iter().zip(refunds) {
            clock.advance(caller.pause);
            let result = key.decide(clock.now, caller.demand(&sample));
            clock.record(&result.decision);
            if refund {
                key.refund(clock.now, result.receipt, result.receipt.cost);
            }
        }
        let all = Demand::peek(sample.quota.limit());
        let peeked = key.peek(clock.now, all).decision;
        let reset = clock.now.saturating_add(peeked.reset_after());
        if reset == Micros::MAX || peeked.reset_after() == Micros::ZERO {
            return Ok(());
        }
        prop_assert!(key.peek(reset, all).decision.is_allowed());
        prop_assert!(
            !key.peek(reset.saturating_sub(Micros::new(1)), all).decision.is_allowed(),
            "{:?}",
            peeked
        );
        Ok(())
    });
}

#[test]
fn key_is_fresh_after_its_reset() {
    let refunds = proptest::collection::vec(any::<bool>(), 40);
    check_property(
        (waiting_call_steps(), refunds, pauses(), waiting_call_steps()),
        |sample, (calls, refunds, pause, later)| {
            let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for (caller, refund) in calls.iter().zip(refunds) {
                clock.advance(caller.pause);
                let result = key.decide(clock.now, caller.demand(&sample));
                clock.record(&result.decision);
                if refund {
                    key.refund(clock.now, result.receipt, result.receipt.cost);
                }
            }
            let reset = key.peek(clock.now, Demand::peek(0)).decision.reset_after();
            if reset.get() > 1 << 51 {
                return Ok(());
            }
            clock.now = clock.now.saturating_add(reset);
            clock.advance(pause);
            let mut new = CoreModel::new(sample.quota);
            for caller in &later {
                clock.advance(caller.pause);
                let demand = caller.demand(&sample);
                let decision = key.decide(clock.now, demand).decision;
                prop_assert_eq!(
                    decision,
                    new.decide(clock.now, demand).decision,
                    "{} at {}",
                    demand.cost,
                    clock.now
                );
                clock.record(&decision);
            }
            Ok(())
        },
    );
}
