//! The times of admissions, and whether they exceed the bound.

use super::is_smooth_rate;
use tidegate_core::{AlgorithmKind, Demand, Outcome, Quota};
pub(crate) use tidegate_testkit::bound::{AdmittedCall, check_windows};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// The demand of a step; one token at a time for shapers, whose bound is for single calls.
pub(crate) fn demand(sample: &Sample, caller: &CallStep) -> Demand {
    let demand = caller.demand(sample);
    match is_smooth_rate(&sample.quota) {
        true => Demand { cost: demand.cost.min(1), ..demand },
        false => demand,
    }
}

/// Runs the calls and returns the admissions.
pub(crate) fn run_calls(
    key: &mut CoreModel,
    sample: &Sample,
    clock: &mut CallClock,
    calls: &[CallStep],
) -> Vec<AdmittedCall> {
    let mut admissions = Vec::new();
    for caller in calls {
        clock.advance(caller.pause);
        let demand = demand(sample, caller);
        let decision = key.decide(clock.now, demand).decision;
        clock.record(&decision);
        match decision.outcome() {
            Outcome::Allow => admissions.push(AdmittedCall { at: clock.now, cost: demand.cost }),
            Outcome::Delay(wait) => {
                admissions.push(AdmittedCall { at: clock.now.saturating_add(wait), cost: demand.cost });
            }
            Outcome::Deny(_) => {}
        }
    }
    admissions
}

/// Whether the bound also holds for a window that includes its end.
pub(crate) fn has_closed_interval_bound(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
}
