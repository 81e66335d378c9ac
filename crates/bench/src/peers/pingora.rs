//! pingora-limits: a count-min sketch of fixed size. Not the same kind of thing: it estimates, it counts denied
//! requests too, and keys that collide are denied for each other. It also never touches more than 64 KiB.

use super::{Decide, Peer, PeerSetup};
use crate::{BenchResult, keys::BenchKey};
use pingora_limits::rate::Rate;

struct PingoraRate {
    rate: Rate,
    limit: isize,
}

/// As many per interval as the quota's burst.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let rate = Rate::new(setup.quota.unit.duration());
    Ok(Box::new(PingoraRate { rate, limit: isize::try_from(setup.quota.burst)? }))
}

impl<K: BenchKey> Decide<K> for PingoraRate {
    #[inline(always)]
    fn decide(&self, key: &K, _place: u32) -> bool {
        self.rate.observe(key, 1) <= self.limit
    }
}
