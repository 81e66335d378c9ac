//! pingora-limits: a count-min sketch of fixed size. It is not equivalent: it estimates, it also counts denied requests,
//! and colliding keys share a count. It never uses more than 64 KiB.

use super::{Decide, Peer, PeerSetup};
use crate::{BenchResult, keys::BenchKey};
use pingora_limits::rate::Rate;

struct PingoraRate {
    rate: Rate,
    limit: isize,
}

/// Allows the quota's burst per interval.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let rate = Rate::new(setup.quota.unit.duration());
    Ok(Box::new(PingoraRate { rate, limit: isize::try_from(setup.quota.burst)? }))
}

impl<K: BenchKey> Decide<K> for PingoraRate {
    #[inline(always)]
    fn decide(&self, key: &K, _index: u32) -> bool {
        self.rate.observe(key, 1) <= self.limit
    }
}
