//! The floor, a lower bound for limiters: GCRA in an array indexed by the key. One unscaled read of the cycle counter and
//! one compare-and-swap; no hashing, lookup or eviction. It is not a usable limiter, because keys must count from zero.

use super::{Decide, Peer, PeerSetup};
use crate::BenchResult;
use std::sync::atomic::{AtomicU64, Ordering};

struct AtomicArray {
    cells: Vec<AtomicU64>,
    clock: quanta::Clock,
    start: u64,
    /// In ticks, like `tolerance`.
    interval: u64,
    tolerance: u64,
}

/// Creates an array of one word per key, or of one word without keys.
pub(super) fn build<K>(setup: &PeerSetup) -> BenchResult<Box<dyn Peer<K>>> {
    let clock = quanta::Clock::new();
    let ticks_per_second = (1_u128 << 40) * 1_000_000_000 / u128::from(clock.delta_as_nanos(0, 1 << 40));
    let period = u128::from(setup.quota.unit.duration().as_secs()) * ticks_per_second;
    let interval = u64::try_from(period / u128::from(setup.quota.tokens))?;
    Ok(Box::new(AtomicArray {
        cells: (0..setup.keys.max(1)).map(|_| AtomicU64::new(0)).collect(),
        start: clock.raw(),
        clock,
        interval,
        tolerance: interval * u64::from(setup.quota.burst - 1),
    }))
}

impl<K> Decide<K> for AtomicArray {
    #[inline(always)]
    fn decide(&self, _key: &K, index: u32) -> bool {
        let now = self.clock.raw() - self.start;
        let cell = &self.cells[index as usize];
        let mut arrival = cell.load(Ordering::Acquire);
        loop {
            let from = arrival.max(now);
            if from - now > self.tolerance {
                return false;
            }
            match cell.compare_exchange_weak(
                arrival,
                from + self.interval,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return true,
                Err(other) => arrival = other,
            }
        }
    }
}
