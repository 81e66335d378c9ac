//! What one writes in an afternoon: a token bucket behind a mutex, in a map for keys.

use super::{Decide, Peer, Setup};
use crate::{Result, keys::Key};
use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Instant,
};

/// `Mutex<HashMap>` with the standard hasher.
struct Map<K> {
    buckets: Mutex<HashMap<K, Bucket>>,
    refill: Refill,
}

/// `Mutex<Bucket>`.
struct One {
    bucket: Mutex<Bucket>,
    refill: Refill,
}

/// Tokens per second, up to a burst.
#[derive(Clone, Copy)]
struct Refill {
    per_second: f64,
    burst: f64,
}

struct Bucket {
    tokens: f64,
    since: Instant,
}

/// With keys.
pub(super) fn keyed<K: Key>(setup: &Setup) -> Result<Box<dyn Peer<K>>> {
    Ok(Box::new(Map { buckets: Mutex::new(HashMap::new()), refill: Refill::of(setup) }))
}

/// Without keys.
pub(super) fn direct(setup: &Setup) -> Result<Box<dyn Peer<()>>> {
    let refill = Refill::of(setup);
    Ok(Box::new(One { bucket: Mutex::new(Bucket::full(refill, now())), refill }))
}

impl<K: Key> Decide<K> for Map<K> {
    #[inline(always)]
    fn decide(&self, key: &K, _place: u32) -> bool {
        let now = now();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        match buckets.get_mut(key) {
            Some(bucket) => bucket.take(self.refill, now),
            None => {
                buckets.entry(key.clone()).or_insert(Bucket::full(self.refill, now)).take(self.refill, now)
            }
        }
    }
}

impl Decide<()> for One {
    #[inline(always)]
    fn decide(&self, _key: &(), _place: u32) -> bool {
        let now = now();
        self.bucket.lock().unwrap_or_else(PoisonError::into_inner).take(self.refill, now)
    }
}

impl Refill {
    fn of(setup: &Setup) -> Self {
        let per_second = f64::from(setup.quota.tokens) / setup.quota.unit.duration().as_secs_f64();
        Self { per_second, burst: f64::from(setup.quota.burst) }
    }
}

impl Bucket {
    fn full(refill: Refill, now: Instant) -> Self {
        Self { tokens: refill.burst, since: now }
    }

    #[inline]
    fn take(&mut self, refill: Refill, now: Instant) -> bool {
        let elapsed = now.saturating_duration_since(self.since).as_secs_f64();
        self.tokens = refill.burst.min(self.tokens + elapsed * refill.per_second);
        self.since = now;
        let enough = self.tokens >= 1.0;
        if enough {
            self.tokens -= 1.0;
        }
        enough
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "this peer is meant to read the clock that everyone reaches for"
)]
fn now() -> Instant {
    Instant::now()
}
