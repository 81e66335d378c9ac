//! leaky-bucket: a queue for waiters with a token count in front. As it comes, each call takes a mutex and reads the
//! clock; when it is told to be unfair, a call does neither while tokens last.

use super::{Decide, Peer, Setup};
use crate::Result;
use ::leaky_bucket::RateLimiter;

/// As it comes.
pub(super) fn fair(setup: &Setup) -> Result<Box<dyn Peer<()>>> {
    build(setup, true)
}

/// With its fast path.
pub(super) fn unfair(setup: &Setup) -> Result<Box<dyn Peer<()>>> {
    build(setup, false)
}

fn build(setup: &Setup, fair: bool) -> Result<Box<dyn Peer<()>>> {
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
