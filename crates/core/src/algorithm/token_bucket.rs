//! Token bucket: a bucket of `burst` tokens that refills at a constant rate; every call takes its cost.
//!
//! ```text
//!   level   burst ┤‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾‾ above: denied
//!   (used         │  ╱|    ╱|╱|
//!   tokens)       │ ╱ | ╲ ╱ | |╲        a cost lifts the level,
//!               0 ┼╱──╲───╳──────╲──▶   time lets it sink at the rate
//! ```
//!
//! The generic cell rate algorithm and the leaky bucket as a meter are the same algorithm; their names are
//! aliases. It needs one number per key and is the default.
//!
//! Note that a new bucket is full: `burst` tokens are admitted at once, in addition to the rate. In any window of
//! length `t` it admits at most `burst + rate · t`, which is twice the rate if the burst is the amount of one
//! window. With `initial n` a new bucket has `n` tokens, and is refilled from its first check on.

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

/// A bucket of `burst` tokens that refills at a steady rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBucket {
    rate: Rate,
    burst: u64,
    /// The tokens of a new key; the burst by default.
    initial: u64,
    integer_bucket: IntegerBucket,
}

impl TokenBucket {
    /// A bucket that holds `burst` tokens and refills at `rate`.
    pub fn new(rate: Rate, burst: u64) -> Result<Self, QuotaError> {
        rate.validate()?;
        QuotaError::require_nonzero("a burst", burst)?;
        let integer_bucket = IntegerBucket::new(rate, burst, 0)?.with_unbounded_queue();
        Ok(Self { rate, burst, initial: burst, integer_bucket })
    }

    /// A bucket that holds `burst` tokens, refills at `rate` and has `initial` tokens for a new key.
    pub fn with_initial(rate: Rate, burst: u64, initial: u64) -> Result<Self, QuotaError> {
        let it = Self::new(rate, burst)?;
        if initial > burst {
            return Err(QuotaError::conflict("initial", initial, "burst", burst));
        }
        Ok(Self { initial, integer_bucket: it.integer_bucket.with_initial_tokens(initial), ..it })
    }

    /// The tokens of a new key.
    pub fn initial(&self) -> u64 {
        self.initial
    }

    /// The integer form, for stores that encode the level in one word.
    #[inline]
    pub fn integer_bucket(&self) -> &IntegerBucket {
        &self.integer_bucket
    }
}

impl Algorithm for TokenBucket {
    const NAMES: &'static [&'static str] = &["token-bucket", "gcra", "leaky-bucket meter"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, super::level::LUA, include_str!("token_bucket.lua")];

    level_methods!();

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        let burst = reader.parse_amount_after("burst", rate.unit())?.unwrap_or(rate.amount());
        match reader.parse_amount_after("initial", rate.unit())? {
            None => Self::new(rate, burst),
            Some(initial) => {
                Self::with_initial(rate, burst, initial).map_err(|error| error.with_last_span(reader))
            }
        }
    }

    fn limit(&self) -> u64 {
        self.burst
    }

    fn bound(&self) -> Bound {
        Bound::burst_and_rate(self.burst, self.rate)
    }

    fn create<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) {
        self.integer_bucket.begin(state, now);
    }
}

impl fmt::Display for TokenBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rate.fmt(f)?;
        if self.burst != self.rate.amount() {
            write!(f, " burst {}", self.rate.unit().display(self.burst))?;
        }
        if self.initial != self.burst {
            write!(f, " initial {}", self.rate.unit().display(self.initial))?;
        }
        Ok(())
    }
}
