//! Limits that find themselves: controllers that turn finished calls into how many may be in flight.
//!
//! ```text
//!   finished call: when, how long, how many beside it, how it ended ──record──▶ limit
//! ```
//!
//! Each controller is a pure state machine in a file of its own. It never refuses a call; it only says how many there
//! may be. [`LatencyTarget`] is the one to use. The others are the models that services know from Netflix's
//! concurrency-limits, to compare with and to move from.
//!
//! Absurd measurements do no harm: a call of no length counts as one of a microsecond, one that ends before it starts
//! as well, and no measurement moves a limit past its floor or its ceiling.

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
    /// How many calls may be in flight.
    fn limit(&self) -> u32;

    /// Takes note of a call that has ended, and says how many may be in flight from now on.
    fn record(&mut self, call: CallSample) -> u32;
}

/// A call that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSample {
    /// When it was let in.
    pub start: Micros,
    /// When it ended.
    pub end: Micros,
    /// How many were in flight when it was let in, itself included.
    pub in_flight: u32,
    /// How it ended. A failure is one that tells of overload: a timeout, a refusal, a dropped connection.
    pub outcome: CallOutcome,
}

impl CallSample {
    /// How long it took, at least a microsecond.
    pub fn latency(&self) -> Micros {
        self.end.since(self.start).max(Micros::new(1))
    }
}

/// Between which ends a limit may move, and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    floor: u32,
    initial: u32,
    ceiling: u32,
}

impl Bounds {
    /// From `floor` to `ceiling`, starting at `initial`.
    pub fn new(floor: u32, initial: u32, ceiling: u32) -> Result<Self, SettingError> {
        SettingError::require_nonzero("a floor", floor.into())?;
        if floor > ceiling {
            let problem = format!("a floor of {floor} over a ceiling of {ceiling}");
            return Err(SettingError::new(problem, "give a floor that is not above the ceiling"));
        }
        SettingError::require_in_range("an initial limit", initial, floor, ceiling)?;
        Ok(Self { floor, initial, ceiling })
    }

    /// The lowest limit.
    pub const fn floor(&self) -> u32 {
        self.floor
    }

    /// The limit to start with.
    pub const fn initial(&self) -> u32 {
        self.initial
    }

    /// The highest limit.
    pub const fn ceiling(&self) -> u32 {
        self.ceiling
    }

    /// The nearest limit between both ends.
    fn clamp(&self, limit: f64) -> f64 {
        // NaN is not above the floor.
        if limit > f64::from(self.floor) { limit.min(self.ceiling.into()) } else { self.floor.into() }
    }
}

/// From 1 to 1000, starting at 20.
impl Default for Bounds {
    fn default() -> Self {
        Self { floor: 1, initial: 20, ceiling: 1_000 }
    }
}
