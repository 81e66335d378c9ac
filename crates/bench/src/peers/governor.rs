//! governor: GCRA in one word, keyed by a sharded map. Its default hasher is SipHash, its default clock quanta's.

use super::{Decide, Peer, PeerQuota, PeerSetup, QuotaPeriod};
use crate::{BenchResult, keys::BenchKey};
use ::governor::{
    DefaultDirectRateLimiter, RateLimiter, clock::DefaultClock, middleware::NoOpMiddleware,
    state::keyed::DashMapStateStore,
};
use std::{hash::BuildHasher, num::NonZeroU32};

type KeyedGovernor<K, S> =
    RateLimiter<K, DashMapStateStore<K, S>, DefaultClock, NoOpMiddleware<::governor::clock::QuantaInstant>>;

/// With keys, all defaults.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    Ok(Box::new(RateLimiter::dashmap(quota(setup.quota)?)))
}

/// With keys, and the hasher that Tidegate uses: what is left of a difference is not the hasher's.
pub(super) fn keyed_foldhash<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let hasher = foldhash::quality::RandomState::default();
    Ok(Box::new(RateLimiter::dashmap_with_hasher(quota(setup.quota)?, hasher)))
}

/// Without keys.
pub(super) fn direct(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    Ok(Box::new(RateLimiter::direct(quota(setup.quota)?)))
}

impl<K: BenchKey, S: BuildHasher + Clone + Send + Sync> Decide<K> for KeyedGovernor<K, S> {
    #[inline(always)]
    fn decide(&self, key: &K, _place: u32) -> bool {
        self.check_key(key).is_ok()
    }
}

impl Decide<()> for DefaultDirectRateLimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _place: u32) -> bool {
        self.check().is_ok()
    }
}

fn quota(PeerQuota { tokens, unit, burst }: PeerQuota) -> BenchResult<::governor::Quota> {
    let tokens = NonZeroU32::new(tokens).ok_or("a quota of no tokens")?;
    let burst = NonZeroU32::new(burst).ok_or("a burst of no tokens")?;
    let rate = match unit {
        QuotaPeriod::Second => ::governor::Quota::per_second(tokens),
        QuotaPeriod::Hour => ::governor::Quota::per_hour(tokens),
    };
    Ok(rate.allow_burst(burst))
}
