//! Why a guard did not let a call through.

use crate::priority::ShedReason;
use std::{error, fmt};
use tidegate_core::{Micros, Retry};

/// Why a guard rejected a call, and when it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rejection {
    /// The breaker is open; the next probe may go after exactly this time.
    Open(Micros),
    /// The breaker is half-open and all its probes are on their way. They are judged after this time at the latest.
    Probing(Micros),
    /// The breaker is held open by hand, until a hand closes it.
    ForcedOpen,
    /// Too much fails, and this call was among those that are shed, by chance.
    Shed,
    /// Too much fails, and the quota that holds meanwhile is used up.
    OverQuota(Retry),
    /// As many calls are in flight as may be.
    Full,
    /// Others are more important, or have a better claim to what is free.
    PriorityShed(ShedReason),
}

impl Rejection {
    /// How long to wait before asking again; `None` if time alone does not say.
    pub fn retry_after(self) -> Option<Micros> {
        match self {
            Self::Open(wait) | Self::Probing(wait) | Self::OverQuota(Retry::After(wait)) => Some(wait),
            Self::ForcedOpen | Self::Shed | Self::OverQuota(_) | Self::Full | Self::PriorityShed(_) => None,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open(wait) => write!(f, "the breaker is open; a probe may go in {}", wait.rounded()),
            Self::Probing(wait) => {
                write!(f, "the breaker waits for its probes, for {} at most", wait.rounded())
            }
            Self::ForcedOpen => f.write_str("the breaker is held open by hand"),
            Self::Shed => f.write_str("shed, because too many calls fail"),
            Self::OverQuota(Retry::After(wait)) => {
                write!(f, "limited, because too many calls fail; ask again in {}", wait.rounded())
            }
            Self::OverQuota(_) => f.write_str("limited, because too many calls fail"),
            Self::Full => f.write_str("as many calls are in flight as may be"),
            Self::PriorityShed(shed) => shed.fmt(f),
        }
    }
}

impl error::Error for Rejection {}
