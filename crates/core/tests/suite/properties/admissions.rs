//! Who went when, and whether that was too much.

use super::is_shaper;
use tidegate_core::{AlgorithmKind, Demand, Outcome, Quota};
pub(crate) use tidegate_testkit::bound::{AdmittedCall, check_windows};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// The demand of a move; for shapers, whose bound is about single calls, one at a time.
pub(crate) fn demand(sample: &Sample, caller: &CallStep) -> Demand {
    let demand = caller.demand(sample);
    match is_shaper(&sample.quota) {
        true => Demand { cost: demand.cost.min(1), ..demand },
        false => demand,
    }
}

/// Plays a story and notes who goes when.
pub(crate) fn run_moves(
    key: &mut CoreModel,
    sample: &Sample,
    moment: &mut CallClock,
    moves: &[CallStep],
) -> Vec<AdmittedCall> {
    let mut admissions = Vec::new();
    for caller in moves {
        moment.advance(caller.pause);
        let demand = demand(sample, caller);
        let decision = key.decide(moment.now, demand).decision;
        moment.record(&decision);
        match decision.outcome() {
            Outcome::Allow => admissions.push(AdmittedCall { at: moment.now, cost: demand.cost }),
            Outcome::Delay(wait) => {
                admissions.push(AdmittedCall { at: moment.now.plus(wait), cost: demand.cost });
            }
            Outcome::Deny(_) => {}
        }
    }
    admissions
}

/// The quotas that count a level are exact even for stretches that hold their end.
pub(crate) fn has_closed_interval_bound(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
}
