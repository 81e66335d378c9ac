//! The simplest implementation: a token bucket behind a mutex, in a map for keys.

use super::{Decide, Peer, PeerSetup};
use crate::{BenchResult, keys::BenchKey};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// `Mutex<HashMap>` with the standard hasher.
struct MutexMap<K> {
    buckets: Mutex<HashMap<K, FloatBucket>>,
    refill: Refill,
}

/// A mutex around one bucket.
struct MutexBucket {
    bucket: Mutex<FloatBucket>,
    refill: Refill,
}

/// Tokens per second, up to a burst.
#[derive(Clone, Copy)]
struct Refill {
    per_second: f64,
    burst: f64,
}

struct FloatBucket {
    tokens: f64,
    updated_at: Instant,
}

/// With keys.
pub(super) fn keyed<K: BenchKey>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    Ok(Box::new(MutexMap { buckets: Mutex::new(HashMap::new()), refill: Refill::new(setup) }))
}

/// Without keys.
pub(super) fn direct(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<()>>> {
    let refill = Refill::new(setup);
    Ok(Box::new(MutexBucket { bucket: Mutex::new(FloatBucket::new(refill, now())), refill }))
}

impl<K: BenchKey> Decide<K> for MutexMap<K> {
    #[inline(always)]
    fn decide(&self, key: &K, _index: u32) -> bool {
        let now = now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get_mut(key) {
            Some(bucket) => bucket.take(self.refill, now),
            None => buckets
                .entry(key.clone())
                .or_insert(FloatBucket::new(self.refill, now))
                .take(self.refill, now),
        }
    }
}

impl Decide<()> for MutexBucket {
    #[inline(always)]
    fn decide(&self, _key: &(), _index: u32) -> bool {
        let now = now();
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(self.refill, now)
    }
}

impl Refill {
    fn new(setup: &PeerSetup) -> Self {
        let per_second = f64::from(setup.quota.tokens) / setup.quota.unit.duration().as_secs_f64();
        Self { per_second, burst: f64::from(setup.quota.burst) }
    }
}

impl FloatBucket {
    fn new(refill: Refill, now: Instant) -> Self {
        Self { tokens: refill.burst, updated_at: now }
    }

    #[inline]
    fn take(&mut self, refill: Refill, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.updated_at).as_secs_f64();
        self.tokens = refill.burst.min(self.tokens + elapsed * refill.per_second);
        self.updated_at = now;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this peer uses the standard clock, as most implementations do"
)]
fn now() -> Instant {
    Instant::now()
}
