//! One of several quotas, chosen by the call.

use super::{Home, SharedLimiter, SharedReservation};
use crate::store::Slots;
use std::time::Duration;
use tidegate_core::{Decision, Demand};

/// A limiter under one of its tiers; see [`crate::SharedLimiterBuilder::build_tiers`].
///
/// ```
/// use tidegate_engine::SharedLimiter;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let limiter = SharedLimiter::builder("api").build_tiers(&["2/min".parse()?, "100/min".parse()?])?;
/// let (free, pro) = (limiter.tier(0).unwrap(), limiter.tier(1).unwrap());
/// assert!(free.check_cost("alice", 2).await.is_allowed());
/// assert!(!free.check("alice").await.is_allowed());
/// assert_eq!(pro.peek("alice", 1).await.remaining(), 98); // what she has used counts
/// # Ok::<(), tidegate_engine::BuildError>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SharedTier<'a> {
    limiter: &'a SharedLimiter,
    tier: usize,
}

impl SharedLimiter {
    /// The limiter under one of its tiers, counted from zero; `None` if there is no such tier.
    pub fn tier(&self, tier: usize) -> Option<SharedTier<'_>> {
        (tier < self.tiers()).then_some(SharedTier { limiter: self, tier })
    }
}

impl<'a> SharedTier<'a> {
    /// Takes one token for `key`, now or not at all.
    pub async fn check(&self, key: &str) -> Decision {
        self.check_cost(key, 1).await
    }

    /// Takes `cost` tokens for `key`, now or not at all. A cost of zero takes nothing: it is a peek.
    pub async fn check_cost(&self, key: &str, cost: u64) -> Decision {
        self.decide(key, Demand::now(cost)).await
    }

    /// What `cost` would get now. Takes nothing.
    pub async fn peek(&self, key: &str, cost: u64) -> Decision {
        self.decide(key, Demand::probe(cost)).await
    }

    /// Takes as much as there is, up to `most`, and says how much that was; see [`crate::Bucket::take_up_to`].
    pub async fn take_up_to(&self, key: &str, most: u64) -> (u64, Decision) {
        self.limiter.take_up_to_in(key, self.tier, most).await
    }

    /// Takes `cost` and accepts to wait for it up to `patience`; see [`crate::Bucket::reserve`].
    pub async fn reserve(&self, key: &str, cost: u64, patience: Duration) -> SharedReservation<'a> {
        self.limiter.take(key, self.tier, Demand::within(cost, patience.into()), Slots::Look).await
    }

    async fn decide(&self, key: &str, demand: Demand) -> Decision {
        match &self.limiter.home {
            Home::Memory(limiter) => limiter.bucket(key, self.tier).decide(demand),
            Home::Store(remote) => self.limiter.put(remote, key, self.tier, demand).await,
        }
    }
}
