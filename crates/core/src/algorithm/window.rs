//! Shared by the window algorithms: finds the earliest time with capacity and records the cost there.

use super::{Algorithm, ChargeResult, Demand, Effect, Overdraft, Receipt};
use crate::{
    decision::{CountReading, Decision, DecisionCode},
    state::AlgorithmState,
    units::Micros,
};

/// The Lua port of this file.
pub(super) const LUA: &str = include_str!("window.lua");

/// The maximum number of windows that one overdraft may fill.
const MAX_OVERDRAFT_WINDOWS: u64 = 1_024;

/// An algorithm that finds the earliest time for a cost and records it there.
///
/// A cost that must wait is recorded at its admission time, and later calls are recorded after it. So a
/// reservation needs no extra state, and calls are admitted in the order of their reservations.
pub(super) trait WindowAlgorithm: Algorithm {
    /// The earliest time, not before `now`, at which `cost` (at most the limit) fits.
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros;
    /// Records `cost` at `at`, a result of [`WindowAlgorithm::earliest_admission`].
    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64);
    /// The amount that fits at `now`.
    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64;
    /// The time from which the state is equivalent to that of an unused key.
    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros;
}

pub(super) fn decide<A, W>(it: &A, state: &mut W, now: Micros, demand: Demand) -> ChargeResult
where
    A: WindowAlgorithm,
    W: AlgorithmState + ?Sized,
{
    // An overdraft is admitted when a full window is; the remaining cost is recorded in the windows after it.
    let limit = it.limit();
    let max_cost = limit.saturating_mul(MAX_OVERDRAFT_WINDOWS);
    let (cost, affordable) = match demand.overdraft {
        Overdraft::Deny => (demand.cost, limit),
        Overdraft::Grant => (demand.cost, max_cost),
        // Work that has been done is charged, up to the maximum number of windows.
        Overdraft::Force => (demand.cost.min(max_cost), max_cost),
    };
    let first = cost.min(limit);
    if cost > affordable {
        return ChargeResult {
            decision: build_decision(it, state, now, DecisionCode::Never, Micros::ZERO),
            receipt: Receipt::default(),
        };
    }

    // Decide.
    let at = it.earliest_admission(state, now, first);
    let wait = at.saturating_sub(now);
    let code = match wait {
        Micros::ZERO => DecisionCode::Allow,
        _ if wait <= demand.max_wait => DecisionCode::Delay,
        _ => DecisionCode::Deny,
    };

    // Update.
    let mut receipt = Receipt::default();
    if code != DecisionCode::Deny && demand.effect == Effect::Charge && cost > 0 {
        it.record(state, at, first);
        let mut left = cost - first;
        while left > 0 {
            let part = left.min(limit);
            let later = it.earliest_admission(state, at, part);
            it.record(state, later, part);
            left -= part;
        }
        // Only the first window is refundable: other calls may wait behind the later ones.
        receipt = Receipt { cost: first, at, ..Receipt::default() };
    }
    ChargeResult { decision: build_decision(it, state, now, code, wait), receipt }
}

fn build_decision<A, W>(it: &A, state: &W, now: Micros, code: DecisionCode, wait: Micros) -> Decision
where
    A: WindowAlgorithm,
    W: AlgorithmState + ?Sized,
{
    let remaining = it.remaining(state, now);
    let reset = it.reset_at(state).saturating_sub(now);
    Decision::from_count(code, it.limit(), CountReading { remaining, reset, wait })
}

/// The methods of a window algorithm with a `rate` that are the same for all of them.
macro_rules! window_methods {
    () => {
        fn rate(&self) -> Option<Rate> {
            Some(self.rate)
        }

        fn limit(&self) -> u64 {
            self.rate.amount()
        }

        fn decide<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            window::decide(self, state, now, demand)
        }
    };
}
pub(super) use window_methods;
