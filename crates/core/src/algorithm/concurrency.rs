//! Concurrency: so many at once, however long each takes.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾  full: denied until one is given back
//!         │ ▉▉▉▉▉
//!       0 ┼──────────▶  in flight
//! ```
//!
//! Time plays no part: a grant is held until it is given back. So there is no honest time to retry at, and the
//! answer says so; wait in a queue instead.
//!
//! Its surprise: with a latency of `t` seconds a limit of `n` is a rate of `n / t`, which falls when the backend
//! slows down. That is the point of it.

use super::{Algorithm, Demand, Effect, Inherit, Receipt, Step};
use crate::{
    bound::Bound,
    decision::{Count, Decision, Verb},
    quota::{QuotaError, Rate, Reader},
    units::Micros,
    words::Words,
};
use core::fmt;

/// A number of permits that are held while work is in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    limit: u64,
}

/// The only word of state: how many permits are held.
const HELD: usize = 0;

impl Concurrency {
    /// At most `limit` at once.
    pub fn new(limit: u64) -> Result<Self, QuotaError> {
        QuotaError::refuse_zero("a concurrency limit", limit)?;
        QuotaError::refuse_inexact("a concurrency limit", limit)?;
        Ok(Self { limit })
    }
}

impl Algorithm for Concurrency {
    const NAMES: &'static [&'static str] = &["concurrency"];

    fn read(rate: Rate, _reader: &mut Reader<'_>) -> Result<Self, QuotaError> {
        Err(QuotaError::not_a_rate(rate))
    }

    fn width(&self) -> usize {
        1
    }

    fn rate(&self) -> Option<Rate> {
        None
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn bound(&self) -> Bound {
        Bound::at_once(self.limit)
    }

    fn decide<W: Words + ?Sized>(&self, state: &mut W, _now: Micros, demand: Demand) -> Step {
        let mut held = state.get(HELD);
        let mut receipt = Receipt::default();

        let verb = if demand.cost > self.limit {
            Verb::Never
        } else if held + demand.cost > self.limit {
            Verb::Full
        } else {
            Verb::Allow
        };
        if verb == Verb::Allow && demand.effect == Effect::Charge && demand.cost > 0 {
            held += demand.cost;
            state.set(HELD, held);
            receipt.cost = demand.cost;
        }

        // What is held stays held until it is given back.
        let reset = if held == 0 { Micros::ZERO } else { Micros::MAX };
        let count = Count { remaining: self.limit.saturating_sub(held), reset, wait: Micros::ZERO };
        Step { decision: Decision::on_count(verb, self.limit, count), receipt }
    }

    fn refund<W: Words + ?Sized>(&self, state: &mut W, _now: Micros, _receipt: Receipt, cost: u64) {
        state.set(HELD, state.get(HELD).saturating_sub(cost));
    }

    /// Permits in flight are facts: they stay held under any limit.
    fn inherit<W: Words + ?Sized>(&self, _old: &Self, _state: &mut W, _now: Micros, _how: Inherit) {}
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at once", self.limit)
    }
}
