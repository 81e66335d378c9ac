//! The upper bound on admitted calls, including outages of the store.

use std::fmt;
use tidegate_core::{Bound, Micros};

/// The worst case of one quota of a [`Limiter`](super::Limiter), with and without the store.
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_limiter::{Limiter, OutageBound};
///
/// let limiter = Limiter::new("5/min")?;
/// let bound = limiter.bounds()[0];
/// assert_eq!(bound.during_outage, OutageBound::NoStore);
/// assert_eq!(bound.max_admitted(Micros::from_secs(60), 3), Some(30), "three processes, each 5 at once and 5 a minute");
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetBound {
    /// What all processes admit together while the store decides; without a store, what each process admits.
    pub normal: Bound,
    /// What is admitted while the store is unavailable.
    pub during_outage: OutageBound,
}

/// What is admitted at most while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OutageBound {
    /// There is no store: each process always counts on its own.
    NoStore,
    /// Nothing: `FailureMode::Closed`.
    Nothing,
    /// Each process admits up to the whole bound, including what the store has granted it: `FailureMode::Local` with one
    /// node.
    WholePerProcess,
    /// Each process admits up to this share, in addition to what the store grants: `FailureMode::Local` with several nodes.
    /// A share is at least one token, so the sum of all shares can exceed the quota.
    SharePerProcess(Bound),
    /// Everything, including decisions that miss their deadline: `FailureMode::Open`.
    Everything,
}

impl FleetBound {
    /// The most that `processes` processes admit together in any window of this length, with any number of outages; `None` if
    /// there is no bound. A restarted process counts as another one.
    pub fn max_admitted(&self, window: Micros, processes: u64) -> Option<u64> {
        let normal = self.normal.max_in_window(window);
        match self.during_outage {
            OutageBound::NoStore | OutageBound::WholePerProcess => Some(normal.saturating_mul(processes)),
            OutageBound::Nothing => Some(normal),
            OutageBound::SharePerProcess(share) => {
                Some(normal.saturating_add(share.max_in_window(window).saturating_mul(processes)))
            }
            OutageBound::Everything => None,
        }
    }
}

impl fmt::Display for FleetBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { normal, during_outage } = self;
        write!(f, "{normal}, {during_outage}")
    }
}

impl fmt::Display for OutageBound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NoStore {
            return f.write_str("in each process");
        }
        f.write_str("in all processes together; while the store is unavailable ")?;
        match self {
            Self::NoStore | Self::Nothing => f.write_str("nothing is admitted"),
            Self::WholePerProcess => f.write_str("in each process"),
            Self::SharePerProcess(share) => write!(f, "each process adds {share}"),
            Self::Everything => f.write_str("there is no bound"),
        }
    }
}
