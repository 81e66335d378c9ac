//! Who went when, and whether that was too much.

use super::is_shaper;
use proptest::{prelude::*, test_runner::TestCaseResult};
use tidegate_core::{Demand, Kind, Micros, Outcome, Quota};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// Somebody went.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) at: Micros,
    pub(crate) cost: u64,
}

/// The demand of a move; for shapers, whose bound is about single calls, one at a time.
pub(crate) fn demand(sample: &Sample, caller: &Move) -> Demand {
    let demand = caller.demand(sample);
    match is_shaper(&sample.quota) {
        true => Demand { cost: demand.cost.min(1), ..demand },
        false => demand,
    }
}

/// Plays a story and notes who goes when.
pub(crate) fn play(key: &mut Plain, sample: &Sample, moment: &mut Moment, story: &[Move]) -> Vec<Admission> {
    let mut admissions = Vec::new();
    for caller in story {
        moment.pass(caller.pause);
        let demand = demand(sample, caller);
        let decision = key.decide(moment.now, demand).decision;
        moment.hear(&decision);
        match decision.outcome() {
            Outcome::Allow => admissions.push(Admission { at: moment.now, cost: demand.cost }),
            Outcome::Delay(wait) => {
                admissions.push(Admission { at: moment.now.plus(wait), cost: demand.cost });
            }
            Outcome::Deny(_) => {}
        }
    }
    admissions
}

/// Checks every stretch of time that starts and ends with an admission; no other can hold more.
///
/// A stretch holds its start and not its end, so the shortest one with both is a microsecond longer than the time
/// between them.
pub(crate) fn check(mut admissions: Vec<Admission>, most: impl Fn(Micros) -> u64) -> TestCaseResult {
    admissions.sort_by_key(|admission| admission.at);
    if admissions.last().is_some_and(|last| last.at == Micros::MAX) {
        return Ok(()); // all who wait for the end of time go then
    }
    for (index, first) in admissions.iter().enumerate() {
        let mut total = 0;
        for last in &admissions[index..] {
            total += last.cost;
            let length = last.at.since(first.at).plus(Micros::new(1));
            let most = most(length);
            prop_assert!(
                total <= most,
                "{} in {} from {}, at most {}: {:?}",
                total,
                length,
                first.at,
                most,
                admissions
            );
        }
    }
    Ok(())
}

/// The quotas that count a level are exact even for stretches that hold their end.
pub(crate) fn closed(quota: &Quota) -> bool {
    matches!(quota.kind(), Kind::TokenBucket(_) | Kind::LeakyBucket(_))
}
