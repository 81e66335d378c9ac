//! Counts the resets of keys: a charge made before a reset cannot be refunded after it.

use crate::sync::{AtomicU64, Ordering};

/// The number of counters; keys share them by their fingerprint.
const STRIPES: usize = if cfg!(loom) { 2 } else { 512 };

/// Counts the resets of keys. Keys that share a counter with a reset key lose at most a refund.
#[derive(Debug)]
pub(crate) struct ResetCounters {
    stripes: Box<[AtomicU64]>,
}

impl ResetCounters {
    /// Counters for any number of keys.
    pub(crate) fn striped() -> Self {
        Self { stripes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// A counter for one key.
    pub(crate) fn single() -> Self {
        Self { stripes: [AtomicU64::new(0)].into() }
    }

    /// Counts a reset of a key. Call it before its state is written.
    pub(crate) fn increment(&self, owner: u64) {
        self.stripe(owner).fetch_add(1, Ordering::AcqRel);
    }

    /// The number of resets of the key, or of another key with the same counter.
    pub(crate) fn get(&self, owner: u64) -> u64 {
        self.stripe(owner).load(Ordering::Acquire)
    }

    fn stripe(&self, owner: u64) -> &AtomicU64 {
        &self.stripes[owner as usize % self.stripes.len()]
    }
}
