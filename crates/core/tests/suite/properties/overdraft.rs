//! Overdrafts and forced charges: a debt is repaid before the next call is admitted.

use super::admissions::{AdmittedCall, check_windows};
use super::{is_concurrency, is_smooth_rate};
use proptest::prelude::*;
use tidegate_core::{AlgorithmKind, Demand, LARGEST_EXACT, Micros, Outcome, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// A cost above the limit is granted when a full burst is, and the next call waits for the time that both need.
#[test]
fn overdraft_is_repaid() {
    check_property(
        (waiting_call_steps(), pauses(), 0_u64..=8, 1_u64..=5),
        |sample, (calls, pause, eighths, bursts)| {
            let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
            for caller in &calls {
                clock.advance(caller.pause);
                clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
            }
            clock.advance(pause);
            let limit = sample.quota.limit();
            let cost =
                CallCost::LimitEighths(eighths).resolve(limit).saturating_add(limit.saturating_mul(bursts));
            let full = key.peek(clock.now, Demand::new(limit)).decision;
            let credit = key.decide(clock.now, Demand::new(cost).with_overdraft()).decision;
            if credit.outcome() == Outcome::Deny(Retry::Never) {
                return Ok(()); // concurrency limits have no overdraft, and neither has a cost beyond the range
            }
            prop_assert_eq!(credit.outcome(), full.outcome(), "{} where {} fit", cost, limit);
            if !credit.is_allowed() {
                return Ok(());
            }
            prop_assert_eq!(credit.remaining(), 0);
            let next = key.peek(clock.now, Demand::new(1)).decision.retry_after();
            let next = next.unwrap_or(Micros::ZERO);
            if clock.now.saturating_add(next) == Micros::MAX {
                return Ok(()); // beyond the range of time
            }
            // The bound of a shaper is for single calls, plus one call of any size.
            let most = sample.quota.bound().max_in_window(next.saturating_add(Micros::new(1)));
            prop_assert!(cost < most, "{} and one more after {}, at most {}", cost, next, most);
            Ok(())
        },
    );
}

/// An overdraft does not wait, so a part of it can be refunded, and the debt falls by that part.
#[test]
fn overdraft_can_be_partly_refunded() {
    let mut key = CoreModel::new("10/s".parse().unwrap());
    let result = key.decide(Micros::ZERO, Demand::new(30).with_overdraft());
    assert!(result.decision.is_allowed());
    key.refund(Micros::ZERO, result.receipt, 15);
    let next = key.decide(Micros::ZERO, Demand::new(1)).decision;
    assert_eq!(next.outcome(), Outcome::Deny(Retry::After(Micros::from_millis(600))));
}

/// A forced charge is charged in any state. Together with the grants it stays within the bound, counted at its
/// admission time.
#[test]
fn forced_charges_count_toward_the_bound() {
    let forced = proptest::collection::vec(any::<bool>(), 40);
    let inputs = prop_oneof![waiting_call_steps().boxed(), crowded_call_steps().boxed()];
    check_property((inputs, forced), |sample, (calls, forced)| {
        if matches!(sample.quota.kind(), AlgorithmKind::CalendarWindow(_)) {
            return Ok(()); // charged to the current window, above its limit
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut admissions = Vec::new();
        for (caller, forced) in calls.iter().zip(forced) {
            clock.advance(caller.pause);
            let demand = caller.demand(&sample);
            let most = if is_smooth_rate(&sample.quota) { 1 } else { sample.quota.limit() };
            let cost = demand.cost.min(most);
            let demand = if forced { Demand::forced(cost) } else { Demand { cost, ..demand } };
            let decision = key.decide(clock.now, demand).decision;
            clock.record(&decision);
            if key.state_words().any(|word| word == LARGEST_EXACT) || decision.reset_after().get() >= 1 << 51
            {
                return Ok(()); // the debt exceeds the range and is cut
            }
            prop_assert!(!forced || decision.is_granted() || is_concurrency(&sample.quota), "{:?}", decision);
            if decision.is_granted() {
                admissions.push(AdmittedCall { at: clock.now.saturating_add(decision.wait()), cost });
            }
        }
        check_windows(admissions, |length| sample.quota.bound().max_in_window(length))
    });
}

/// A forced charge of any size is charged: later calls wait for it.
#[test]
fn settled_cost_of_any_size_is_charged() {
    let costs = prop_oneof![1_u64..=3, 1_000_u64..=100_000, Just(1 << 40), Just(1 << 52), Just(u64::MAX)];
    check_property((waiting_call_steps(), pauses(), costs), |sample, (calls, pause, cost)| {
        if is_concurrency(&sample.quota) {
            return Ok(()); // permits are released, not drained
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let limit = sample.quota.limit();
        let before = key.peek(clock.now, Demand::peek(0)).decision;
        let forced = key.decide(clock.now, Demand::forced(cost)).decision;
        prop_assert!(forced.is_granted(), "{:?}", forced);
        let after = key.peek(clock.now, Demand::new(1)).decision;
        prop_assert!(after.remaining() <= before.remaining());
        // A shaper truncates debts to whole microseconds.
        if cost > limit.saturating_mul(2) && !is_smooth_rate(&sample.quota) {
            prop_assert!(!after.is_allowed(), "{} of {} and another one: {}", cost, limit, after);
        }
        // The debt is repaid, unless that exceeds the range of time.
        let reset = key.peek(clock.now, Demand::peek(0)).decision.reset_after();
        if clock.now.saturating_add(reset).get() < 1 << 52 {
            let then = clock.now.saturating_add(reset);
            prop_assert!(key.peek(then, Demand::new(1)).decision.is_allowed(), "never repaid");
        }
        Ok(())
    });
}

/// The part of a charge that did not raise the level is not refunded.
#[test]
fn refund_of_settled_cost_creates_no_tokens() {
    check_property((crowded_call_steps(), Just(u64::MAX)), |sample, (calls, cost)| {
        if is_concurrency(&sample.quota) || is_smooth_rate(&sample.quota) {
            return Ok(());
        }
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        let before = key.peek(clock.now, Demand::peek(0)).decision.remaining();
        let receipt = key.decide(clock.now, Demand::forced(cost)).receipt;
        key.refund(clock.now, receipt, cost);
        prop_assert!(key.peek(clock.now, Demand::peek(0)).decision.remaining() <= before);
        Ok(())
    });
}
