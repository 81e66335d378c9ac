//! leaky-bucket: a queue for waiters with a token count in front. As it comes, each call takes a mutex and reads the
//! clock; when it is told to be unfair, a call does neither while tokens last.

use super::{Decide, Peer, PeerSetup};
use crate::BenchResult;
use ::leaky_bucket::RateLimiter;

/// As it comes.
pub(super) fn fair(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    build(setup, true)
}

/// With its fast path.
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
    fn decide(&self, _key: &(), _place: u32) -> bool {
        self.try_acquire(1)
    }
}
