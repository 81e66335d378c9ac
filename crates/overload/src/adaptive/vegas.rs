//! TCP Vegas: estimates the queue from the increase of latency over the one without load, and keeps it short.
//!
//! ```text
//!   queue = limit · (1 − unloaded / latency)
//!
//!   0 ── grow fast ── threshold ── grow ── α ── stay ── β ── shrink ──▶ queue
//! ```
//!
//! From time to time it takes the current latency as the one without load. Under constant load the queue
//! becomes part of that reference, and the limit grows by it.

use super::{Bounds, CallSample, Controller};
use crate::call_outcome::CallOutcome;
use tidegate_core::SettingError;

/// Keeps the estimated queue between two thresholds.
#[derive(Clone, Debug)]
pub struct Vegas {
    bounds: Bounds,
    decrease: Decrease,
    smoothing: f64,
    limit: f64,
    /// The latency without load in microseconds; unknown at first.
    no_load_latency: Option<f64>,
    calls: u64,
    /// Determines when the next probe is due: changed after each, so that instances do not probe at the same
    /// time.
    jitter: u64,
}

/// How a limit decreases when the queue is too long or a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decrease {
    /// By the number of its digits less one, at least by one.
    Log10,
    /// To half.
    Halve,
}

/// Calls per slot of the limit between two probes.
const PROBE_MULTIPLIER: f64 = 30.0;

impl Vegas {
    /// Creates a controller without smoothing that decreases by the number of digits.
    pub fn new(bounds: Bounds) -> Self {
        let limit = bounds.initial().into();
        let jitter = 0x9e37_79b9_7f4a_7c15;
        Self {
            bounds,
            decrease: Decrease::Log10,
            smoothing: 1.0,
            limit,
            no_load_latency: None,
            calls: 0,
            jitter,
        }
    }

    /// Sets how the limit decreases.
    #[must_use]
    pub fn decrease(self, decrease: Decrease) -> Self {
        Self { decrease, ..self }
    }

    /// Sets the weight of a new value, from just over 0 to 1.
    pub fn smoothing(self, smoothing: f64) -> Result<Self, SettingError> {
        SettingError::require_in_range("a smoothing", smoothing, 0.001, 1.0)?;
        Ok(Self { smoothing, ..self })
    }

    fn is_probe_due(&mut self) -> bool {
        let share = 0.5 + (self.jitter >> 11) as f64 / (1_u64 << 54) as f64;
        if (self.calls as f64) < share * PROBE_MULTIPLIER * self.limit {
            return false;
        }
        // One step of xorshift.
        self.jitter ^= self.jitter << 13;
        self.jitter ^= self.jitter >> 7;
        self.jitter ^= self.jitter << 17;
        self.calls = 0;
        true
    }

    /// The limit according to this call; `None` to keep the current one.
    fn target_limit(&self, call: &CallSample, latency: f64, unloaded: f64) -> Option<f64> {
        let digits = f64::from((self.limit as u32).max(1).ilog10().max(1));
        let (alpha, beta) = (3.0 * digits, 6.0 * digits);
        let queue = ceil(self.limit * (1.0 - unloaded / latency));
        let decreased = match self.decrease {
            Decrease::Log10 => self.limit - digits,
            Decrease::Halve => self.limit / 2.0,
        };
        match queue {
            _ if call.outcome == CallOutcome::Failure => Some(decreased),
            _ if f64::from(call.in_flight) * 2.0 < self.limit => None,
            _ if queue <= digits => Some(self.limit + beta),
            _ if queue < alpha => Some(self.limit + digits),
            _ if queue > beta => Some(decreased),
            _ => None,
        }
    }
}

impl Controller for Vegas {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn record(&mut self, call: CallSample) -> u32 {
        if call.outcome == CallOutcome::Ignored {
            return self.limit();
        }
        let latency = call.latency().get() as f64;
        self.calls += 1;
        let known = self.no_load_latency.filter(|unloaded| latency >= *unloaded);
        let Some(unloaded) = known.filter(|_| !self.is_probe_due()) else {
            self.no_load_latency = Some(latency);
            return self.limit();
        };
        if let Some(target) = self.target_limit(&call, latency, unloaded) {
            let target = self.bounds.clamp(target);
            self.limit = self.limit * (1.0 - self.smoothing) + target * self.smoothing;
        }
        self.limit()
    }
}

/// The next integer; the values here are far below 2^53.
fn ceil(value: f64) -> f64 {
    let whole = value as u64 as f64;
    if whole < value { whole + 1.0 } else { whole }
}
