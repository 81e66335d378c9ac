//! Warm-up: Guava's `SmoothWarmingUp`, which is slow after idle time and speeds up to the stable rate.
//!
//! ```text
//!   interval
//!   cold ┤            ╱         idle time moves right, calls move left;
//!        │          ╱ ▒         the time that a permit costs is the area above it,
//! stable ┤────────╱▒▒▒▒         and the shaded area is the warm-up time
//!        │░░░░░░░░▒▒▒▒▒
//!      0 ┼───────┴─────┴──▶ stored permits
//!             threshold  max
//! ```
//!
//! For backends that fill caches and pools before they can serve the full rate.
//!
//! Note that stored permits make it slower, not faster. An unused key is cold.

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

/// A rate that is reached only after a warm-up.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WarmUp {
    rate: Rate,
    warm_up: Micros,
    cold_factor: f64,
    smooth_rate: SmoothRate,
}

/// Guava's default.
const DEFAULT_COLD_FACTOR: f64 = 3.0;
const MAX_COLD_FACTOR: f64 = 1_000_000.0;

impl WarmUp {
    /// Permits at `rate`, reached over `warm_up` from an interval that is `cold_factor` times as long.
    pub fn new(rate: Rate, warm_up: Micros, cold_factor: f64) -> Result<Self, QuotaError> {
        rate.validate()?;
        QuotaError::require_nonzero("a warm-up", warm_up.get())?;
        if !(1.0..=MAX_COLD_FACTOR).contains(&cold_factor) {
            return Err(QuotaError::invalid_cold_factor(cold_factor, MAX_COLD_FACTOR));
        }
        let stable = 1_000_000.0 / rate.per_second();
        let cold = stable * cold_factor;
        let period = warm_up.get() as f64;
        let threshold = 0.5 * period / stable;
        let max_permits = threshold + 2.0 * period / (stable + cold);
        let slope = (cold - stable) / (max_permits - threshold);
        let stored_permit_cost = StoredPermitCost::Trapezoid { threshold, slope };
        let smooth_rate = SmoothRate {
            stable_interval: stable,
            max_permits,
            cool_down_interval: period / max_permits,
            stored_permit_cost,
        };
        Ok(Self { rate, warm_up, cold_factor, smooth_rate })
    }

    /// The duration of the warm-up.
    pub fn warm_up(&self) -> Micros {
        self.warm_up
    }

    /// The ratio of the cold interval to the stable one.
    pub fn cold_factor(&self) -> f64 {
        self.cold_factor
    }

    /// The stored permits and the time at which the next call proceeds: Guava's internal variables, for tests.
    pub fn inspect<W: AlgorithmState + ?Sized>(&self, state: &W) -> (f64, Micros) {
        let smooth_state = self.smooth_rate.load(state);
        (smooth_state.stored, smooth_state.free_at)
    }
}

impl Algorithm for WarmUp {
    const NAMES: &'static [&'static str] = &["warm-up"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, smooth_rate::LUA, include_str!("warm_up.lua")];

    smooth_rate_methods!();

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        let warm_up = reader.parse_period("a warm-up duration, as in `warm-up 4s`")?;
        let cold = reader.parse_decimal_after("cold")?;
        Self::new(rate, warm_up, cold.unwrap_or(DEFAULT_COLD_FACTOR))
            .map_err(|error| error.with_last_span(reader))
    }

    fn bound(&self) -> Bound {
        // Stored permits cost at least the stable interval each, so only the last call exceeds the rate. A debt is
        // the sum of up to three terms, each of which is truncated.
        Bound::debt(0, self.rate, 3)
    }

    fn create<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) {
        SmoothRate::save(state, SmoothState { stored: self.smooth_rate.max_permits, free_at: now });
    }
}

impl fmt::Display for WarmUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} warm-up {} cold {}", self.rate, self.warm_up, self.cold_factor)
    }
}
