//! governor: GCRA in one word, with a sharded map for keys. Its default hasher is SipHash, its default clock quanta.

use super::{Called, Decide, Peer, PeerQuota, PeerSetup, QuotaPeriod};
use crate::{BenchResult, keys::BenchKey};
use ::governor::{
    DefaultDirectRateLimiter, RateLimiter, clock::DefaultClock, middleware::NoOpMiddleware,
    state::keyed::DashMapStateStore,
};
use std::{hash::BuildHasher, num::NonZeroU32};

type KeyedGovernor<K, S> =
    RateLimiter<K, DashMapStateStore<K, S>, DefaultClock, NoOpMiddleware<::governor::clock::QuantaInstant>>;

/// With keys and all defaults.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    Ok(Box::new(RateLimiter::dashmap(quota(setup.quota)?)))
}

/// With keys and Tidegate's hasher, to exclude the hasher from the difference.
pub(super) fn keyed_foldhash<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let hasher = foldhash::quality::RandomState::default();
    Ok(Box::new(RateLimiter::dashmap_with_hasher(quota(setup.quota)?, hasher)))
}

/// Without keys.
pub(super) fn direct(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    Ok(Box::new(RateLimiter::direct(quota(setup.quota)?)))
}

/// Without keys, behind a call that is not inlined.
pub(super) fn direct_called(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    Ok(Box::new(Called(RateLimiter::direct(quota(setup.quota)?))))
}

impl<K: BenchKey, S: BuildHasher + Clone + Send + Sync> Decide<K> for KeyedGovernor<K, S> {
    #[inline(always)]
    fn decide(&self, key: &K, _index: u32) -> bool {
        self.check_key(key).is_ok()
    }
}

impl Decide<()> for DefaultDirectRateLimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _index: u32) -> bool {
        self.check().is_ok()
    }
}

fn quota(PeerQuota { tokens, unit, burst }: PeerQuota) -> BenchResult<::governor::Quota> {
    let tokens = NonZeroU32::new(tokens).ok_or("the quota must not be zero")?;
    let burst = NonZeroU32::new(burst).ok_or("the burst must not be zero")?;
    let rate = match unit {
        QuotaPeriod::Second => ::governor::Quota::per_second(tokens),
        QuotaPeriod::Hour => ::governor::Quota::per_hour(tokens),
    };
    Ok(rate.allow_burst(burst))
}
