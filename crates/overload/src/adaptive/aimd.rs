//! Additive increase, multiplicative decrease: plus one while calls succeed, minus a tenth when one fails.
//!
//! ```text
//!   limit ┤   ╱|  ╱|  ╱|   a call failed, or took longer than the timeout
//!         │ ╱  |╱  |╱  |
//!         ┼─────────────▶ calls
//! ```
//!
//! It reacts to failures only. While nothing fails the limit grows, whatever happens to the latency.

use super::{Bounds, CallSample, Controller};
use crate::call_outcome::CallOutcome;
use tidegate_core::{Micros, SettingError};

/// Additive increase, multiplicative decrease.
#[derive(Clone, Debug)]
pub struct Aimd {
    bounds: Bounds,
    backoff: f64,
    timeout: Micros,
    limit: u32,
}

impl Aimd {
    /// Creates a controller that multiplies the limit by 0.9 when a call fails or takes longer than five
    /// seconds.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, backoff: 0.9, timeout: Micros::from_secs(5), limit: bounds.initial() }
    }

    /// Sets the factor applied to the limit after a failure: from 0.5 to just under 1.
    pub fn backoff(self, backoff: f64) -> Result<Self, SettingError> {
        SettingError::require_in_range("a backoff", backoff, 0.5, 0.999)?;
        Ok(Self { backoff, ..self })
    }

    /// Sets the latency above which a call counts as failed.
    pub fn timeout(self, timeout: Micros) -> Result<Self, SettingError> {
        SettingError::require_finite("a timeout", timeout)?;
        Ok(Self { timeout, ..self })
    }
}

impl Controller for Aimd {
    fn limit(&self) -> u32 {
        self.limit
    }

    fn record(&mut self, call: CallSample) -> u32 {
        let is_failed = call.outcome == CallOutcome::Failure || call.latency() > self.timeout;
        let limit = match call.outcome {
            CallOutcome::Ignored => return self.limit,
            _ if is_failed => (f64::from(self.limit) * self.backoff) as u32,
            _ if u64::from(call.in_flight) * 2 >= u64::from(self.limit) => self.limit.saturating_add(1),
            _ => self.limit,
        };
        self.limit = limit.clamp(self.bounds.floor(), self.bounds.ceiling());
        self.limit
    }
}
