//! Netflix's Gradient2: compares the latency now with the long-term latency, and shrinks the limit when it
//! got worse.
//!
//! ```text
//!   gradient = tolerance · long-term latency / latency      (from 0.5 to 1)
//!   limit    = limit · gradient + queue                     (a fifth of the way at each call)
//! ```
//!
//! Latency that is bad for long enough becomes its reference. When all calls time out after the same time,
//! the gradient is 1 and the limit grows without bound. It ignores failures. It exists for comparison; use
//! [`super::LatencyTarget`].

use super::{Bounds, CallSample, Controller};
use crate::call_outcome::CallOutcome;

/// Netflix's `Gradient2Limit`, with its defaults.
#[derive(Clone, Debug)]
pub struct Gradient2 {
    bounds: Bounds,
    limit: f64,
    long_term: WarmUpAverage,
}

const SMOOTHING: f64 = 0.2;
const QUEUE_SIZE: f64 = 4.0;
const TOLERANCE: f64 = 1.5;

impl Gradient2 {
    /// Creates a controller with Netflix's defaults except for the bounds, which are 20 and 200 there.
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, limit: bounds.initial().into(), long_term: WarmUpAverage::default() }
    }
}

impl Controller for Gradient2 {
    fn limit(&self) -> u32 {
        self.limit as u32
    }

    fn record(&mut self, call: CallSample) -> u32 {
        if call.outcome == CallOutcome::Ignored {
            return self.limit();
        }
        let latency = call.latency().get() as f64;
        let long_term = self.long_term.add(latency);
        // Recover faster after a long overload.
        if long_term / latency > 2.0 {
            self.long_term.value *= 0.95;
        }
        if f64::from(call.in_flight) < self.limit / 2.0 {
            return self.limit();
        }
        let gradient = (TOLERANCE * long_term / latency).clamp(0.5, 1.0);
        let target = self.limit * gradient + QUEUE_SIZE;
        self.limit = self.bounds.clamp(self.limit * (1.0 - SMOOTHING) + target * SMOOTHING);
        self.limit()
    }
}

/// An exponential average over 600 calls that starts as the mean of the first ten.
#[derive(Clone, Debug, Default)]
struct WarmUpAverage {
    value: f64,
    calls: u32,
}

impl WarmUpAverage {
    const WARM_UP_CALLS: u32 = 10;
    const SMOOTHING_FACTOR: f64 = 2.0 / 601.0;

    fn add(&mut self, value: f64) -> f64 {
        if self.calls < Self::WARM_UP_CALLS {
            self.calls += 1;
            self.value += (value - self.value) / f64::from(self.calls);
        } else {
            self.value = self.value * (1.0 - Self::SMOOTHING_FACTOR) + value * Self::SMOOTHING_FACTOR;
        }
        self.value
    }
}
