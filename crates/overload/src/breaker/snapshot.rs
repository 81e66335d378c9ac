//! A breaker as it is at one moment.

use super::window::CallCounts;
use std::fmt;
use tidegate_core::{Micros, Percent};

/// What a breaker does with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// All pass, and are watched.
    Closed,
    /// None pass, for some time.
    Open,
    /// A few pass, as probes.
    HalfOpen,
    /// None pass until a hand changes it.
    ForcedOpen,
    /// All pass, and nothing is recorded.
    Disabled,
    /// All pass and are recorded, whatever the rates are.
    MetricsOnly,
}

/// `closed`, `half-open`, as in logs and labels.
impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::ForcedOpen => "forced-open",
            Self::Disabled => "disabled",
            Self::MetricsOnly => "metrics-only",
        })
    }
}

/// A breaker's numbers at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSnapshot {
    /// What it does with calls.
    pub state: BreakerState,
    /// How often the state has changed.
    pub generation: u64,
    /// What the rates are taken from. While the breaker is open, that is what opened it.
    pub counts: CallCounts,
    /// The share of calls that failed; `None` while there are too few to tell.
    pub failure_rate: Option<Percent>,
    /// The share of calls that were slow; `None` while there are too few to tell, or calls are not timed.
    pub slow_rate: Option<Percent>,
    /// How many calls were rejected since the breaker was made.
    pub rejected: u64,
    /// How often it opened since it was last closed.
    pub attempts: u32,
    /// How long the open state, or the wait for probes, still lasts.
    pub remaining: Option<Micros>,
}
