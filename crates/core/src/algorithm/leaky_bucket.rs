//! Leaky bucket as a queue: work leaves at a constant rate, and a bounded number of callers wait their turn.
//!
//! ```text
//!   arrivals  ▏▏▏▏▏▏    ▏        queue ┤ ▒▒▒▒▒▒   beyond: denied
//!   departures ▏  ▏  ▏  ▏  ▏  ▏  delay ┤ ░░       up to here: go at once
//! ```
//!
//! `queue` is how many may wait behind the one that goes, `delay` how many of those need not wait after all:
//! nginx's `limit_req burst=queue delay=delay`, and `nodelay` when both are equal.
//!
//! Its surprise: a caller that will not wait is denied although the queue is empty behind it. `check` only ever
//! answers for "now"; ask with patience to be given a place. And a cost over `delay + 1` never fits, unless it is taken on
//! credit: for bytes, which come in larger pieces, take a token bucket or give a `delay`.

use super::{
    Algorithm, ChargeResult, Demand, LuaArgs, Receipt,
    level::{Meter, level_methods},
};
use crate::{
    bound::Bound,
    decision::Decision,
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// Constant outflow with a bounded queue in front of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyBucket {
    rate: Rate,
    queue: u64,
    delay: u64,
    meter: Meter,
}

impl LeakyBucket {
    /// One caller goes at a time, at `rate`; `queue` more may wait, of which the first `delay` go at once too.
    pub fn new(rate: Rate, queue: u64, delay: u64) -> Result<Self, QuotaError> {
        rate.validate()?;
        if delay > queue {
            return Err(QuotaError::conflict("delay", delay, "queue", queue));
        }
        let meter = Meter::new(rate, delay.saturating_add(1), queue - delay)?;
        Ok(Self { rate, queue, delay, meter })
    }

    /// How many may wait behind the one that goes.
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// How many of those need not wait after all.
    pub fn delay(&self) -> u64 {
        self.delay
    }

    /// The whole-number form, for stores that keep the level in one word of their own.
    #[inline]
    pub fn meter(&self) -> &Meter {
        &self.meter
    }
}

impl Algorithm for LeakyBucket {
    const NAMES: &'static [&'static str] = &["leaky-bucket", "leaky-bucket queue"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, super::level::LUA, include_str!("leaky_bucket.lua")];

    level_methods!();

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        // `leaky-bucket queue 5` is the algorithm's long name and its parameter in one.
        let queue = match reader.parse_optional_amount(rate.unit())? {
            Some(queue) => Some(queue),
            None => reader.parse_amount_after("queue", rate.unit())?,
        };
        let queue = queue.unwrap_or(rate.amount());
        let delay = match reader.accept("nodelay") {
            Some(()) => queue,
            None => reader.parse_amount_after("delay", rate.unit())?.unwrap_or(0),
        };
        Self::new(rate, queue, delay)
    }

    fn limit(&self) -> u64 {
        self.delay + 1
    }

    fn bound(&self) -> Bound {
        Bound::burst_and_rate(self.delay + 1, self.rate)
    }
}

impl fmt::Display for LeakyBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |amount| self.rate.unit().display(amount);
        write!(f, "{} leaky-bucket queue {}", self.rate, show(self.queue))?;
        match self.delay {
            0 => Ok(()),
            all if all == self.queue => f.write_str(" nodelay"),
            some => write!(f, " delay {}", show(some)),
        }
    }
}
