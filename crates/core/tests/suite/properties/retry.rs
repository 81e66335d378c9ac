//! Property 3: a retry succeeds after exactly the retry time, and not one microsecond earlier.

use super::is_concurrency;
use proptest::prelude::*;
use tidegate_core::{Demand, Micros, Outcome, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn retry_after_is_exact_to_the_microsecond() {
    check_property((waiting_call_steps(), pauses(), costs()), |sample, (calls, pause, cost)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &calls {
            clock.advance(caller.pause);
            clock.record(&key.decide(clock.now, caller.demand(&sample)).decision);
        }
        clock.advance(pause);
        let demand = Demand::new(cost.resolve(sample.quota.limit()));
        let Outcome::Deny(retry) = key.peek(clock.now, demand).decision.outcome() else { return Ok(()) };
        match retry {
            Retry::After(wait) => {
                prop_assert!(wait > Micros::ZERO);
                let then = clock.now.saturating_add(wait);
                if then == Micros::MAX {
                    return Ok(()); // beyond the range of time
                }
                prop_assert!(key.peek(then, demand).decision.is_allowed(), "not after {}", wait);
                let before = then.saturating_sub(Micros::new(1));
                prop_assert!(!key.peek(before, demand).decision.is_granted(), "already before {}", wait);
            }
            Retry::Never => prop_assert!(demand.cost > sample.quota.limit() || sample.quota.is_total()),
            Retry::WhenReleased => prop_assert!(is_concurrency(&sample.quota)),
        }
        Ok(())
    });
}

/// For demands with a maximum wait: the retry time is when the call need not wait, or when the queue has room.
#[test]
fn waiting_caller_is_granted_after_retry() {
    check_property((waiting_call_steps(), waiting_call_steps()), |sample, (calls, later)| {
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in calls.iter().chain(&later) {
            clock.advance(caller.pause);
            let demand = caller.demand(&sample);
            let decision = key.decide(clock.now, demand).decision;
            if let Some(wait) = decision.retry_after() {
                let then = clock.now.saturating_add(wait);
                prop_assert!(then == Micros::MAX || key.peek(then, demand).decision.is_granted());
            }
            if let Outcome::Delay(wait) = decision.outcome() {
                prop_assert!(wait > Micros::ZERO && wait <= demand.max_wait);
            }
            clock.record(&decision);
        }
        Ok(())
    });
}
