//! trypema: a sliding window of coalesced counts per key, for string keys.

use super::{Decide, Peer, PeerSetup};
use crate::BenchResult;
use ::trypema::{
    BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize, local::LocalRateLimiterProvider,
};
use std::sync::Arc;

struct TrypemaLimiter {
    provider: Arc<LocalRateLimiterProvider>,
    limit: RateLimit,
}

/// The quota's burst per window of one hour, so that no key expires, with buckets of ten minutes, so that a window has
/// one count during the run: its best case.
pub(super) fn keyed(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<String>>> {
    let provider = LocalRateLimiterProvider::builder()
        .window_size(WindowSize::hours(1)?)
        .bucket_size(BucketSize::minutes(10)?)
        .disable_cleanup()
        .build()?;
    Ok(Box::new(TrypemaLimiter { provider, limit: RateLimit::per_hour(f64::from(setup.quota.burst))? }))
}

impl Decide<String> for TrypemaLimiter {
    #[inline(always)]
    fn decide(&self, key: &String, _index: u32) -> bool {
        matches!(self.provider.absolute().inc(key, &self.limit, 1), RateLimitDecision::Allowed)
    }
}
