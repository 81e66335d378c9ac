//! Tidegate itself, as a user would write it.

use super::{Decide, Peer, Quota, Setup, Tick, Unit};
use crate::{Result, keys::Key};
use ::tidegate::{Capacity, Clock, DirectLimiter, Limiter};

/// A limiter with room for exactly the keys of the case.
pub(super) fn keyed<K: Key>(setup: &Setup) -> Result<Box<dyn Peer<K>>> {
    let limiter = Limiter::builder()
        .capacity(Capacity::Keys(u64::from(setup.keys)))
        .clock(clock(setup.tick))
        .build(text(setup.quota).as_str())?;
    Ok(Box::new(limiter))
}

/// One bucket.
pub(super) fn direct(setup: &Setup) -> Result<Box<dyn Peer<()>>> {
    let throttle = DirectLimiter::builder().clock(clock(setup.tick)).build(text(setup.quota).as_str())?;
    Ok(Box::new(throttle))
}

impl<K: Key> Decide<K> for Limiter {
    #[inline(always)]
    fn decide(&self, key: &K, _place: u32) -> bool {
        self.check(key).is_allowed()
    }

    fn crowded_out(&self) -> u64 {
        self.stats().map_or(0, |stats| stats.overflowed)
    }
}

impl Decide<()> for DirectLimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _place: u32) -> bool {
        self.check().is_allowed()
    }
}

fn clock(tick: Tick) -> Clock {
    match tick {
        Tick::Exact => Clock::system(),
        Tick::Coarse => Clock::coarse(),
    }
}

fn text(Quota { tokens, unit, burst }: Quota) -> String {
    let unit = match unit {
        Unit::Second => "s",
        Unit::Hour => "h",
    };
    format!("{tokens}/{unit} burst {burst}")
}
