//! Controllers that turn finished calls into a limit of calls in flight.
//!
//! ```text
//!   finished call: start, end, calls in flight, outcome ──record──▶ limit
//! ```
//!
//! Each controller is a pure state machine in its own file. It does not reject calls; it only sets the limit. Use
//! [`LatencyTarget`]. The others are models from Netflix's concurrency-limits, for comparison and migration.
//!
//! Invalid measurements are harmless: a call without duration, or one that ends before it starts, counts as one
//! microsecond, and no measurement moves a limit out of its bounds.

mod aimd;
mod gradient2;
mod latency_target;
mod limit;
mod vegas;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use latency_target::LatencyTarget;
pub use limit::{AdaptiveEntry, AdaptiveLimit};
pub use vegas::{Decrease, Vegas};

use crate::call_outcome::CallOutcome;
use std::fmt;
use tidegate_core::{Micros, SettingError};

/// Turns finished calls into a limit of calls in flight.
pub trait Controller: fmt::Debug + Send {
    /// The number of calls that may be in flight.
    fn limit(&self) -> u32;

    /// Records a call that has ended, and returns the new limit.
    fn record(&mut self, call: CallSample) -> u32;
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSample {
    /// When it was admitted.
    pub start: Micros,
    /// When it ended.
    pub end: Micros,
    /// The number of calls in flight when it was admitted, itself included.
    pub in_flight: u32,
    /// The outcome. A failure is one that indicates overload: a timeout, a rejection, a dropped connection.
    pub outcome: CallOutcome,
}

impl CallSample {
    /// The latency, at least a microsecond.
    pub fn latency(&self) -> Micros {
        self.end.saturating_sub(self.start).max(Micros::new(1))
    }
}

/// The bounds of a limit and its initial value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    floor: u32,
    initial: u32,
    ceiling: u32,
}

impl Bounds {
    /// Creates bounds from `floor` to `ceiling`, with an initial limit.
    pub fn new(floor: u32, initial: u32, ceiling: u32) -> Result<Self, SettingError> {
        SettingError::require_nonzero("a floor", floor.into())?;
        if floor > ceiling {
            let problem = format!("a floor of {floor} is above the ceiling of {ceiling}");
            return Err(SettingError::new(problem, "give a floor that is not above the ceiling"));
        }
        SettingError::require_in_range("an initial limit", initial, floor, ceiling)?;
        Ok(Self { floor, initial, ceiling })
    }

    /// The lowest limit.
    pub const fn floor(&self) -> u32 {
        self.floor
    }

    /// The initial limit.
    pub const fn initial(&self) -> u32 {
        self.initial
    }

    /// The highest limit.
    pub const fn ceiling(&self) -> u32 {
        self.ceiling
    }

    /// Clamps a limit to the bounds.
    fn clamp(&self, limit: f64) -> f64 {
        // NaN becomes the floor.
        if limit > f64::from(self.floor) { limit.min(self.ceiling.into()) } else { self.floor.into() }
    }
}

/// From 1 to 1000, starting at 20.
impl Default for Bounds {
    fn default() -> Self {
        Self { floor: 1, initial: 20, ceiling: 1_000 }
    }
}
