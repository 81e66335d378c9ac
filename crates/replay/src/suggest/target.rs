//! The target of a suggestion: how much a quota may deny.

use super::{rates::GroupRates, trial::Trial};
use std::fmt;
use tidegate_core::Percent;

/// How much of a group a quota may deny. Outliers are not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuggestTarget {
    /// The share of keys that must never be denied.
    Keys(Percent),
    /// The share of requests that may be denied.
    Requests(Percent),
}

/// The target as an absolute number for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allowance {
    /// Keys that may be denied.
    Keys(u64),
    /// Requests that may be denied.
    Requests(u64),
}

impl SuggestTarget {
    pub(super) fn allowance(self, group: &GroupRates) -> Allowance {
        match self {
            Self::Keys(share) => Allowance::Keys(share.complement().apply(group.typical_keys())),
            Self::Requests(share) => Allowance::Requests(share.apply(group.typical_requests())),
        }
    }
}

impl Allowance {
    pub(super) fn permits(self, trial: &Trial) -> bool {
        match self {
            Self::Keys(keys) => trial.keys <= keys,
            Self::Requests(requests) => trial.typical_denied <= requests,
        }
    }
}

impl fmt::Display for SuggestTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys(share) => write!(f, "at least {share} of the keys of each group never denied"),
            Self::Requests(share) => write!(f, "at most {share} of the requests of each group denied"),
        }
    }
}
