//! What the algorithms that count in windows share: placing a cost at the earliest moment that has room.

use super::{Algorithm, Credit, Demand, Effect, Receipt, Step};
use crate::{
    decision::{Count, Decision, Verb},
    units::Micros,
    words::Words,
};

/// The twin of this file.
pub(super) const LUA: &str = include_str!("window.lua");

/// The most windows that one cost on credit may fill ahead.
const LONGEST_CREDIT: u64 = 1_024;

/// An algorithm that finds the earliest moment for a cost and records it there.
///
/// A cost that must wait is recorded at the moment it will go, and later callers are placed behind it. So a
/// reservation needs no state of its own, and reservation order is service order.
pub(super) trait Window: Algorithm {
    /// The earliest moment, not before `now`, at which `cost` (at most the limit) fits.
    fn earliest<W: Words + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros;
    /// Records `cost` at `at`, which [`Window::earliest`] named.
    fn record<W: Words + ?Sized>(&self, state: &mut W, at: Micros, cost: u64);
    /// How much fits at `now`.
    fn remaining<W: Words + ?Sized>(&self, state: &W, now: Micros) -> u64;
    /// The moment from which the state is as good as never seen.
    fn forgotten<W: Words + ?Sized>(&self, state: &W) -> Micros;
}

pub(super) fn decide<A, W>(it: &A, state: &mut W, now: Micros, demand: Demand) -> Step
where
    A: Window,
    W: Words + ?Sized,
{
    // A cost on credit goes when a full window would; the rest is recorded behind it, window by window.
    let limit = it.limit();
    let longest = limit.saturating_mul(LONGEST_CREDIT);
    let (cost, affordable) = match demand.credit {
        Credit::Refuse => (demand.cost, limit),
        Credit::Grant => (demand.cost, longest),
        // Work that has been done is charged, as far ahead as windows are filled.
        Credit::Force => (demand.cost.min(longest), longest),
    };
    let first = cost.min(limit);
    if cost > affordable {
        return Step {
            decision: answer(it, state, now, Verb::Never, Micros::ZERO),
            receipt: Receipt::default(),
        };
    }

    // Decide.
    let at = it.earliest(state, now, first);
    let wait = at.since(now);
    let verb = match wait {
        Micros::ZERO => Verb::Allow,
        _ if wait <= demand.patience => Verb::Delay,
        _ => Verb::Deny,
    };

    // Update.
    let mut receipt = Receipt::default();
    if verb != Verb::Deny && demand.effect == Effect::Charge && cost > 0 {
        it.record(state, at, first);
        let mut rest = cost - first;
        while rest > 0 {
            let part = rest.min(limit);
            let later = it.earliest(state, at, part);
            it.record(state, later, part);
            rest -= part;
        }
        // Only the first window can be given back: others may queue behind the rest.
        receipt = Receipt { cost: first, at, ..Receipt::default() };
    }
    Step { decision: answer(it, state, now, verb, wait), receipt }
}

fn answer<A, W>(it: &A, state: &W, now: Micros, verb: Verb, wait: Micros) -> Decision
where
    A: Window,
    W: Words + ?Sized,
{
    let remaining = it.remaining(state, now);
    let reset = it.forgotten(state).since(now);
    Decision::on_count(verb, it.limit(), Count { remaining, reset, wait })
}

/// What a window with a `rate` does as all of them do.
macro_rules! counted {
    () => {
        fn rate(&self) -> Option<Rate> {
            Some(self.rate)
        }

        fn limit(&self) -> u64 {
            self.rate.amount()
        }

        fn decide<W: Words + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> Step {
            window::decide(self, state, now, demand)
        }
    };
}
pub(super) use counted;
