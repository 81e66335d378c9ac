//! Tidegate, as a user would use it.

use super::{Called, ClockKind, Decide, Peer, PeerQuota, PeerSetup, QuotaPeriod};
use crate::{BenchResult, keys::BenchKey};
use ::tidegate::{Capacity, Clock, DirectLimiter, Limiter};

/// A limiter with a capacity of exactly the keys of the case.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let limiter = Limiter::builder()
        .capacity(Capacity::Keys(u64::from(setup.keys)))
        .clock(clock(setup.clock))
        .build(quota_text(setup.quota).as_str())?;
    Ok(Box::new(limiter))
}

/// One bucket.
pub(super) fn direct(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    Ok(Box::new(one_bucket(setup)?))
}

/// One bucket, behind a call that is not inlined.
pub(super) fn direct_called(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    Ok(Box::new(Called(one_bucket(setup)?)))
}

fn one_bucket(setup: &PeerSetup) -> BenchResult<DirectLimiter> {
    Ok(DirectLimiter::builder().clock(clock(setup.clock)).build(quota_text(setup.quota).as_str())?)
}

impl<K: BenchKey> Decide<K> for Limiter {
    #[inline(always)]
    fn decide(&self, key: &K, _index: u32) -> bool {
        self.check(key).is_allowed()
    }

    fn overflowed(&self) -> u64 {
        self.stats().map_or(0, |stats| stats.overflowed)
    }
}

impl Decide<()> for DirectLimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _index: u32) -> bool {
        self.check().is_allowed()
    }
}

fn clock(kind: ClockKind) -> Clock {
    match kind {
        ClockKind::Exact => Clock::system(),
        ClockKind::Coarse => Clock::coarse(),
    }
}

fn quota_text(PeerQuota { tokens, unit, burst }: PeerQuota) -> String {
    let unit = match unit {
        QuotaPeriod::Second => "s",
        QuotaPeriod::Hour => "h",
    };
    format!("{tokens}/{unit} burst {burst}")
}
