//! Why a guard rejected a call.

use crate::priority::ShedReason;
use std::{error, fmt};
use tidegate_core::{Micros, Retry};

/// The reason why a guard rejected a call, and when a retry makes sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The breaker is open; it admits the next probe after this time.
    Open(Micros),
    /// The breaker is half-open and all its probes are in flight. It decides after this time at the latest.
    Probing(Micros),
    /// The breaker was forced open, until it is closed manually.
    ForcedOpen,
    /// Too many calls fail, and this call was shed at random.
    Throttled,
    /// Too many calls fail, and the quota that applies meanwhile is exceeded.
    QuotaExceeded(Retry),
    /// The concurrency limit is reached.
    ConcurrencyLimitReached,
    /// The remaining slots are reserved for requests of higher priority.
    PriorityShed(ShedReason),
    /// The load of the machine is above the threshold of the request's class.
    LoadShed,
    /// The feature that serves the call is off.
    FeatureOff,
}

impl Rejection {
    /// The time to wait before a retry; `None` if it is unknown.
    pub fn retry_after(self) -> Option<Micros> {
        match self {
            Self::Open(wait) | Self::Probing(wait) | Self::QuotaExceeded(Retry::After(wait)) => Some(wait),
            Self::ForcedOpen
            | Self::Throttled
            | Self::QuotaExceeded(_)
            | Self::ConcurrencyLimitReached
            | Self::PriorityShed(_)
            | Self::LoadShed
            | Self::FeatureOff => None,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(wait) => write!(f, "circuit breaker open; next probe in {}", wait.rounded()),
            Self::Probing(wait) => {
                write!(f, "circuit breaker half-open; probes end within {}", wait.rounded())
            }
            Self::ForcedOpen => f.write_str("circuit breaker forced open"),
            Self::Throttled => f.write_str("call shed; error rate too high"),
            Self::QuotaExceeded(Retry::After(wait)) => {
                write!(f, "quota exceeded while the error rate is high; retry in {}", wait.rounded())
            }
            Self::QuotaExceeded(_) => f.write_str("quota exceeded while the error rate is high"),
            Self::ConcurrencyLimitReached => f.write_str("concurrency limit reached"),
            Self::PriorityShed(shed) => shed.fmt(f),
            Self::LoadShed => f.write_str("request shed; load too high"),
            Self::FeatureOff => f.write_str("feature off"),
        }
    }
}

impl error::Error for Rejection {}
