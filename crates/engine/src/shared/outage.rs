//! What is decided when the store is away.

use super::reservation::SharedReservation;
use crate::{
    BuildError,
    limiter::Limiter,
    store::{Choice, Slots},
};
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
    Local { nodes: u64, choice: Choice, limiter: ArcSwap<Limiter> },
}

impl Fallback {
    pub(super) fn new(outage: Outage, quotas: &[Quota], choice: Choice) -> Result<Self, BuildError> {
        Ok(match outage {
            Outage::Open => Self::Open,
            Outage::Closed => Self::Closed { limit: quotas.iter().map(Quota::limit).min().unwrap_or(0) },
            Outage::Local { nodes } => {
                let limiter = ArcSwap::from_pointee(share(nodes, quotas, choice)?);
                Self::Local { nodes, choice, limiter }
            }
        })
    }

    pub(super) fn change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        if let Self::Local { nodes, choice, limiter } = self {
            limiter.store(Arc::new(share(*nodes, quotas, *choice)?));
        }
        Ok(())
    }

    pub(super) fn decide(&self, key: &str, tier: usize, demand: Demand) -> Decision {
        self.answer(|limiter| limiter.bucket(key, tier).decide(demand))
    }

    pub(super) fn take_up_to(&self, key: &str, tier: usize, most: u64) -> (u64, Decision) {
        match self {
            Self::Local { limiter, .. } => {
                let (taken, decision) = limiter.load().bucket(key, tier).take_up_to(most);
                (taken, decision.degraded())
            }
            Self::Open => (most, self.answer(|limiter| limiter.key(key).check(0))),
            Self::Closed { .. } => (0, self.answer(|limiter| limiter.key(key).check(0))),
        }
    }

    pub(super) fn take(
        &self,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: Slots,
    ) -> SharedReservation<'static> {
        match self {
            Self::Local { limiter, .. } => {
                SharedReservation::locally(&limiter.load(), key, tier, demand, slots).degraded()
            }
            Self::Open | Self::Closed { .. } => SharedReservation::settled(self.decide(key, tier, demand)),
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

fn share(nodes: u64, quotas: &[Quota], choice: Choice) -> Result<Limiter, BuildError> {
    let shares: Vec<_> = quotas.iter().map(|quota| quota.share(nodes)).collect();
    match choice {
        Choice::All => Limiter::builder().build_all(&shares),
        Choice::Tier => Limiter::builder().build_tiers(&shares),
    }
}
