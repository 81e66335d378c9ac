//! Leaky bucket as a queue: calls proceed at a constant rate, and a bounded number of callers wait.
//!
//! ```text
//!   arrivals  ▏▏▏▏▏▏    ▏        queue ┤ ▒▒▒▒▒▒   beyond: denied
//!   departures ▏  ▏  ▏  ▏  ▏  ▏  delay ┤ ░░       up to here: no wait
//! ```
//!
//! `queue` is the number of calls that may wait behind the current one, `delay` the number of those that proceed
//! without a wait: nginx's `limit_req burst=queue delay=delay`, and `nodelay` if both are equal.
//!
//! Note that `check` denies a call that would have to wait even if the queue is empty; only a demand with a
//! maximum wait is queued. A cost above `delay + 1` needs an overdraft. For bytes, which arrive in larger pieces,
//! use a token bucket or set `delay`.

use super::{
    Algorithm, ChargeResult, Demand, LuaArgs, Receipt,
    level::{IntegerBucket, level_methods},
};
use crate::{
    bound::Bound,
    decision::Decision,
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// A constant rate with a bounded queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LeakyBucket {
    rate: Rate,
    queue: u64,
    delay: u64,
    integer_bucket: IntegerBucket,
}

impl LeakyBucket {
    /// One call at a time, at `rate`; up to `queue` more wait, of which the first `delay` do not have to.
    pub fn new(rate: Rate, queue: u64, delay: u64) -> Result<Self, QuotaError> {
        rate.validate()?;
        if delay > queue {
            return Err(QuotaError::conflict("delay", delay, "queue", queue));
        }
        let integer_bucket = IntegerBucket::new(rate, delay.saturating_add(1), queue - delay)?;
        Ok(Self { rate, queue, delay, integer_bucket })
    }

    /// The number of calls that may wait.
    pub fn queue(&self) -> u64 {
        self.queue
    }

    /// The number of queued calls that proceed without a wait.
    pub fn delay(&self) -> u64 {
        self.delay
    }

    /// The integer form, for stores that encode the level in one word.
    #[inline]
    pub fn integer_bucket(&self) -> &IntegerBucket {
        &self.integer_bucket
    }
}

impl Algorithm for LeakyBucket {
    const NAMES: &'static [&'static str] = &["leaky-bucket", "leaky-bucket queue"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, super::level::LUA, include_str!("leaky_bucket.lua")];

    level_methods!();

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        // `leaky-bucket queue 5` is both the long name of the algorithm and its parameter.
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
