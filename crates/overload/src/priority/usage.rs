//! The recent usage of each user, in a fixed amount of memory.

use super::PriorityRequest;
use tidegate_core::Micros;

/// A count-min sketch: it may overestimate the usage of a user, but never underestimates it.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageSketch {
    counters: Vec<u32>,
    last_halving: Micros,
}

const ROWS: usize = 4;
const COLUMNS: usize = 1_024;
/// The half-life of the counts.
const HALF_LIFE: Micros = Micros::from_secs(2);
/// Steps of usage within a level: four per doubling.
const USAGE_STEPS: u16 = 64;

impl UsageSketch {
    /// The rank of a request within its class: by level, then by low usage. Higher ranks are admitted first.
    pub(super) fn rank(&self, request: PriorityRequest) -> u16 {
        let used = request.user.map_or(0, |user| self.estimate(user));
        u16::from(request.level) * USAGE_STEPS + (USAGE_STEPS - 1 - usage_step(used))
    }

    pub(super) fn charge(&mut self, request: PriorityRequest) {
        let Some(user) = request.user else { return };
        if self.counters.is_empty() {
            self.counters = vec![0; ROWS * COLUMNS];
        }
        for index in counter_indexes(user) {
            if let Some(counter) = self.counters.get_mut(index) {
                *counter = counter.saturating_add(1);
            }
        }
    }

    pub(super) fn advance(&mut self, now: Micros) {
        // If the clock was set back, the half-life restarts.
        self.last_halving = self.last_halving.min(now);
        let halvings = now.saturating_sub(self.last_halving).get() / HALF_LIFE.get();
        if halvings > 0 {
            self.last_halving = now;
            let by = u32::try_from(halvings).unwrap_or(u32::MAX);
            self.counters.iter_mut().for_each(|counter| *counter = counter.checked_shr(by).unwrap_or(0));
        }
    }

    fn estimate(&self, user: u64) -> u32 {
        counter_indexes(user).filter_map(|index| self.counters.get(index).copied()).min().unwrap_or(0)
    }
}

/// One counter per row.
fn counter_indexes(user: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let mixed = (user ^ row as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        row * COLUMNS + (mixed >> 54) as usize
    })
}

/// A coarse logarithm: four steps per doubling.
fn usage_step(used: u32) -> u16 {
    let used = u64::from(used) + 1;
    let doublings = used.ilog2();
    let quarter = if doublings < 2 { 0 } else { (used >> (doublings - 2)) & 3 };
    (doublings as u16 * 4 + quarter as u16).min(USAGE_STEPS - 1)
}
