//! ratelimit: one token bucket of two words.

use super::{Decide, Peer, PeerSetup};
use crate::BenchResult;
use ::ratelimit::Ratelimiter;

/// One bucket, initially full like those of the other peers.
pub(super) fn direct(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    let burst = u64::from(setup.quota.burst);
    let limiter = Ratelimiter::builder(u64::from(setup.quota.tokens))
        .period(setup.quota.unit.duration())
        .max_tokens(burst)
        .initial_available(burst)
        .build()
        .map_err(|error| format!("ratelimit: {error:?}"))?;
    Ok(Box::new(limiter))
}

impl Decide<()> for Ratelimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _index: u32) -> bool {
        self.try_wait().is_ok()
    }
}
