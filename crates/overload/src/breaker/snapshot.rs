//! The state and numbers of a breaker at one time.

use super::window::CallCounts;
use std::fmt;
use tidegate_core::{Micros, Percent};

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    /// All calls are admitted and recorded.
    Closed,
    /// All calls are rejected, for some time.
    Open,
    /// A few calls are admitted as probes.
    HalfOpen,
    /// All calls are rejected until it is changed manually.
    ForcedOpen,
    /// All calls are admitted and nothing is recorded.
    Disabled,
    /// All calls are admitted and recorded, whatever the rates are.
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

/// The numbers of a breaker at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerSnapshot {
    /// The state.
    pub state: BreakerState,
    /// The number of state changes.
    pub generation: u64,
    /// The counts behind the rates. While the breaker is open, those that opened it.
    pub counts: CallCounts,
    /// The failure rate; `None` below the minimum number of calls.
    pub failure_rate: Option<Percent>,
    /// The rate of slow calls; `None` below the minimum number of calls, or if calls are not timed.
    pub slow_rate: Option<Percent>,
    /// The number of calls rejected since the breaker was created.
    pub rejected: u64,
    /// The number of times it opened since it was last closed.
    pub attempts: u32,
    /// The remaining time of the open state, or of the wait for probes.
    pub remaining: Option<Micros>,
}
