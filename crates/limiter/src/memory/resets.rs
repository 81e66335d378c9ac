//! How often keys were forgotten: what was taken before a key was forgotten cannot be given back after it.

use crate::sync::{AtomicU64, Ordering};

/// Counters that keys share by their fingerprint.
const STRIPES: usize = if cfg!(loom) { 2 } else { 512 };

/// Counts how often keys were forgotten. Few keys share a counter, and those that do lose no more than a refund.
#[derive(Debug)]
pub(crate) struct ResetCounters {
    stripes: Box<[AtomicU64]>,
}

impl ResetCounters {
    /// For any number of keys.
    pub(crate) fn striped() -> Self {
        Self { stripes: (0..STRIPES).map(|_| AtomicU64::new(0)).collect() }
    }

    /// For one.
    pub(crate) fn single() -> Self {
        Self { stripes: [AtomicU64::new(0)].into() }
    }

    /// Counts one of a key. To be called before its state is written.
    pub(crate) fn increment(&self, owner: u64) {
        self.stripe(owner).fetch_add(1, Ordering::AcqRel);
    }

    /// How many there were, of the key or of one that shares its counter.
    pub(crate) fn get(&self, owner: u64) -> u64 {
        self.stripe(owner).load(Ordering::Acquire)
    }

    fn stripe(&self, owner: u64) -> &AtomicU64 {
        &self.stripes[owner as usize % self.stripes.len()]
    }
}
