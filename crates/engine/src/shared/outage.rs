//! What is decided when the store is away.

use super::reservation::SharedReservation;
use crate::{BuildError, limiter::Limiter, store::Slots};
use arc_swap::ArcSwap;
use std::sync::Arc;
use tidegate_core::{Decision, Demand, Micros, Quota};

/// What is decided when the store is away or too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// Allow everything.
    Open,
    /// Deny everything.
    Closed,
    /// Count in this process, with its share of the quota. A key starts anew when the outage does, so it gets at most
    /// one more burst of that share.
    Local {
        /// How many processes share the quota.
        nodes: u64,
    },
}

impl Default for Outage {
    fn default() -> Self {
        Self::Local { nodes: 1 }
    }
}

/// When to ask a store again that is away.
const RETRY: Micros = Micros::from_secs(1);

/// Decides without the store.
pub(super) enum Fallback {
    Open,
    Closed { limit: u64 },
    Local { nodes: u64, limiter: ArcSwap<Limiter> },
}

impl Fallback {
    pub(super) fn new(outage: Outage, quotas: &[Quota]) -> Result<Self, BuildError> {
        Ok(match outage {
            Outage::Open => Self::Open,
            Outage::Closed => Self::Closed { limit: quotas.iter().map(Quota::limit).min().unwrap_or(0) },
            Outage::Local { nodes } => {
                Self::Local { nodes, limiter: ArcSwap::from_pointee(share(nodes, quotas)?) }
            }
        })
    }

    pub(super) fn change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        if let Self::Local { nodes, limiter } = self {
            limiter.store(Arc::new(share(*nodes, quotas)?));
        }
        Ok(())
    }

    pub(super) fn decide(&self, key: &str, demand: Demand) -> Decision {
        self.answer(|limiter| limiter.key(key).decide(demand))
    }

    pub(super) fn take_up_to(&self, key: &str, most: u64) -> (u64, Decision) {
        match self {
            Self::Local { limiter, .. } => {
                let (taken, decision) = limiter.load().key(key).take_up_to(most);
                (taken, decision.degraded())
            }
            Self::Open => (most, self.answer(|limiter| limiter.key(key).check(0))),
            Self::Closed { .. } => (0, self.answer(|limiter| limiter.key(key).check(0))),
        }
    }

    pub(super) fn take(&self, key: &str, demand: Demand, slots: Slots) -> SharedReservation<'static> {
        match self {
            Self::Local { limiter, .. } => {
                SharedReservation::locally(limiter.load_full(), key, demand, slots)
            }
            Self::Open | Self::Closed { .. } => SharedReservation::settled(self.decide(key, demand)),
        }
    }

    fn answer(&self, locally: impl Fn(&Limiter) -> Decision) -> Decision {
        match self {
            Self::Open => Decision::unlimited().degraded(),
            Self::Closed { limit } => Decision::closed(*limit, RETRY),
            Self::Local { limiter, .. } => locally(&limiter.load()).degraded(),
        }
    }
}

fn share(nodes: u64, quotas: &[Quota]) -> Result<Limiter, BuildError> {
    let shares: Vec<_> = quotas.iter().map(|quota| quota.share(nodes)).collect();
    Limiter::builder().build_all(&shares)
}
