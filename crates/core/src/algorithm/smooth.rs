//! Smooth: Guava's `SmoothBursty`, which spaces calls evenly and stores idle time as permits.
//!
//! ```text
//!   calls      1   1   1      5                1
//!   proceed ───┴───┴───┴──────┴───┴───┴───┴───┴┴──▶
//!                             ▲ no wait          ▲ waits for the five before it
//! ```
//!
//! A call never waits for its own cost, only for the debt of earlier calls.
//!
//! Note that a single call of any size proceeds at once if there is no debt: a cost is never denied, and the next
//! call waits. A new key starts with all its permits stored; a limiter without keys starts with none, as in Guava.

use super::{
    Algorithm, ChargeResult, Demand, LuaArgs, Receipt,
    smooth_rate::{self, SmoothRate, SmoothState, StoredPermitCost, smooth_rate_methods},
};
use crate::{
    bound::Bound,
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// Evenly spaced permits, of which idle time stores up to a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Smooth {
    rate: Rate,
    burst: Option<u64>,
    smooth_rate: SmoothRate,
}

impl Smooth {
    /// Permits at `rate`; idle time stores up to one second of them, as in Guava.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        Self::build(rate, None)
    }

    /// Permits at `rate`; idle time stores up to `burst` of them.
    pub fn with_burst(rate: Rate, burst: u64) -> Result<Self, QuotaError> {
        QuotaError::require_nonzero("a burst", burst)?;
        QuotaError::require_exact("a burst", burst)?;
        Self::build(rate, Some(burst))
    }

    fn build(rate: Rate, burst: Option<u64>) -> Result<Self, QuotaError> {
        rate.validate()?;
        let per_second = rate.per_second();
        let stable = 1_000_000.0 / per_second;
        let max_permits = burst.map_or(per_second, |burst| burst as f64);
        let smooth_rate = SmoothRate {
            stable_interval: stable,
            max_permits,
            cool_down_interval: stable,
            stored_permit_cost: StoredPermitCost::Free,
        };
        Ok(Self { rate, burst, smooth_rate })
    }

    /// The maximum number of stored permits, if declared.
    pub fn burst(&self) -> Option<u64> {
        self.burst
    }

    /// The stored permits and the time at which the next call proceeds: Guava's internal variables, for tests.
    pub fn inspect<W: AlgorithmState + ?Sized>(&self, state: &W) -> (f64, Micros) {
        let smooth_state = self.smooth_rate.load(state);
        (smooth_state.stored, smooth_state.free_at)
    }
}

impl Algorithm for Smooth {
    const NAMES: &'static [&'static str] = &["smooth"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, smooth_rate::LUA, include_str!("smooth.lua")];

    smooth_rate_methods!();

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        match reader.parse_amount_after("burst", rate.unit())? {
            Some(burst) => Self::with_burst(rate, burst),
            None => Self::new(rate),
        }
    }

    fn bound(&self) -> Bound {
        // A fraction of a stored permit counts as one.
        Bound::debt((self.smooth_rate.max_permits as u64).saturating_add(1), self.rate, 1)
    }

    fn create<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) {
        SmoothRate::save(state, SmoothState { stored: 0.0, free_at: now });
    }
}

impl fmt::Display for Smooth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} smooth", self.rate)?;
        match self.burst {
            Some(burst) => write!(f, " burst {}", self.rate.unit().display(burst)),
            None => Ok(()),
        }
    }
}
