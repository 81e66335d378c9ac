//! leaky-bucket: a token count with a queue of waiters. By default each call locks a mutex and reads the clock; in unfair
//! mode a call does neither while tokens remain.

use super::{Decide, Peer, PeerSetup};
use crate::BenchResult;
use ::leaky_bucket::RateLimiter;

/// With its defaults.
pub(super) fn fair(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    build(setup, true)
}

/// In unfair mode, with its fast path.
pub(super) fn unfair(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    build(setup, false)
}

fn build(setup: &PeerSetup, fair: bool) -> BenchResult<Box<dyn Peer<()>>> {
    let burst = usize::try_from(setup.quota.burst)?;
    let limiter = RateLimiter::builder()
        .initial(burst)
        .max(burst)
        .refill(usize::try_from(setup.quota.tokens)?)
        .interval(setup.quota.unit.duration())
        .fair(fair)
        .build();
    Ok(Box::new(limiter))
}

impl Decide<()> for RateLimiter {
    #[inline(always)]
    fn decide(&self, _key: &(), _index: u32) -> bool {
        self.try_acquire(1)
    }
}
