//! Law 3: waiting exactly as long as told admits, one microsecond less does not.

use super::is_concurrency;
use proptest::prelude::*;
use tidegate_core::{Demand, Micros, Outcome, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

#[test]
fn retry_after_is_exact_to_the_microsecond() {
    check_property((waiting_call_steps(), pauses(), costs()), |sample, (story, pause, cost)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in &story {
            moment.advance(caller.pause);
            moment.record(&key.decide(moment.now, caller.demand(&sample)).decision);
        }
        moment.advance(pause);
        let demand = Demand::new(cost.resolve(sample.quota.limit()));
        let Outcome::Deny(retry) = key.peek(moment.now, demand).decision.outcome() else { return Ok(()) };
        match retry {
            Retry::After(wait) => {
                prop_assert!(wait > Micros::ZERO);
                let then = moment.now.plus(wait);
                if then == Micros::MAX {
                    return Ok(()); // not in our time
                }
                prop_assert!(key.peek(then, demand).decision.is_allowed(), "not after {}", wait);
                let before = then.since(Micros::new(1));
                prop_assert!(!key.peek(before, demand).decision.is_granted(), "already before {}", wait);
            }
            Retry::Never => prop_assert!(demand.cost > sample.quota.limit()),
            Retry::WhenReleased => prop_assert!(is_concurrency(&sample.quota)),
        }
        Ok(())
    });
}

/// For those who would wait: the retry is when they need not, or when the queue has room for them.
#[test]
fn waiting_caller_is_granted_after_retry() {
    check_property((waiting_call_steps(), waiting_call_steps()), |sample, (story, later)| {
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        for caller in story.iter().chain(&later) {
            moment.advance(caller.pause);
            let demand = caller.demand(&sample);
            let decision = key.decide(moment.now, demand).decision;
            if let Some(wait) = decision.retry_after() {
                let then = moment.now.plus(wait);
                prop_assert!(then == Micros::MAX || key.peek(then, demand).decision.is_granted());
            }
            if let Outcome::Delay(wait) = decision.outcome() {
                prop_assert!(wait > Micros::ZERO && wait <= demand.max_wait);
            }
            moment.record(&decision);
        }
        Ok(())
    });
}
