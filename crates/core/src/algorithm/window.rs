//! What the algorithms that count in windows share: placing a cost at the earliest moment that has room.

use super::{Algorithm, ChargeResult, Demand, Effect, Overdraft, Receipt};
use crate::{
    decision::{CountReading, Decision, DecisionCode},
    state::AlgorithmState,
    units::Micros,
};

/// The twin of this file.
pub(super) const LUA: &str = include_str!("window.lua");

/// The most windows that one cost on credit may fill ahead.
const MAX_OVERDRAFT_WINDOWS: u64 = 1_024;

/// An algorithm that finds the earliest moment for a cost and records it there.
///
/// A cost that must wait is recorded at the moment it will go, and later callers are placed behind it. So a
/// reservation needs no state of its own, and reservation order is service order.
pub(super) trait WindowAlgorithm: Algorithm {
    /// The earliest moment, not before `now`, at which `cost` (at most the limit) fits.
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros;
    /// Records `cost` at `at`, which [`WindowAlgorithm::earliest_admission`] named.
    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64);
    /// How much fits at `now`.
    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64;
    /// The moment from which the state is as good as never seen.
    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros;
}

pub(super) fn decide<A, W>(it: &A, state: &mut W, now: Micros, demand: Demand) -> ChargeResult
where
    A: WindowAlgorithm,
    W: AlgorithmState + ?Sized,
{
    // A cost on credit goes when a full window would; the rest is recorded behind it, window by window.
    let limit = it.limit();
    let max_cost = limit.saturating_mul(MAX_OVERDRAFT_WINDOWS);
    let (cost, affordable) = match demand.overdraft {
        Overdraft::Refuse => (demand.cost, limit),
        Overdraft::Grant => (demand.cost, max_cost),
        // Work that has been done is charged, as far ahead as windows are filled.
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
    let wait = at.since(now);
    let verb = match wait {
        Micros::ZERO => DecisionCode::Allow,
        _ if wait <= demand.max_wait => DecisionCode::Delay,
        _ => DecisionCode::Deny,
    };

    // Update.
    let mut receipt = Receipt::default();
    if verb != DecisionCode::Deny && demand.effect == Effect::Charge && cost > 0 {
        it.record(state, at, first);
        let mut rest = cost - first;
        while rest > 0 {
            let part = rest.min(limit);
            let later = it.earliest_admission(state, at, part);
            it.record(state, later, part);
            rest -= part;
        }
        // Only the first window can be given back: others may queue behind the rest.
        receipt = Receipt { cost: first, at, ..Receipt::default() };
    }
    ChargeResult { decision: build_decision(it, state, now, verb, wait), receipt }
}

fn build_decision<A, W>(it: &A, state: &W, now: Micros, verb: DecisionCode, wait: Micros) -> Decision
where
    A: WindowAlgorithm,
    W: AlgorithmState + ?Sized,
{
    let remaining = it.remaining(state, now);
    let reset = it.reset_at(state).since(now);
    Decision::from_count(verb, it.limit(), CountReading { remaining, reset, wait })
}

/// What a window with a `rate` does as all of them do.
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
