//! How much each user was given lately, in a fixed amount of memory.

use super::PriorityRequest;
use tidegate_core::Micros;

/// A sketch that may count too much for a user, and never too little.
#[derive(Clone, Debug, Default)]
pub(super) struct UsageSketch {
    counters: Vec<u32>,
    last_halving: Micros,
}

const ROWS: usize = 4;
const COLUMNS: usize = 1_024;
/// How fast the past fades.
const HALF_LIFE: Micros = Micros::from_secs(2);
/// Steps of usage inside a level: four for each doubling.
const USAGE_STEPS: u16 = 64;

impl UsageSketch {
    /// Where an arrival stands in its class: by level, then by how little it was given. The higher goes first.
    pub(super) fn rank(&self, arrival: PriorityRequest) -> u16 {
        let used = arrival.user.map_or(0, |user| self.estimate(user));
        u16::from(arrival.level) * USAGE_STEPS + (USAGE_STEPS - 1 - usage_step(used))
    }

    pub(super) fn charge(&mut self, arrival: PriorityRequest) {
        let Some(user) = arrival.user else { return };
        if self.counters.is_empty() {
            self.counters = vec![0; ROWS * COLUMNS];
        }
        for place in counter_indexes(user) {
            if let Some(counter) = self.counters.get_mut(place) {
                *counter = counter.saturating_add(1);
            }
        }
    }

    pub(super) fn advance(&mut self, now: Micros) {
        // If time was set back, the half-life begins again.
        self.last_halving = self.last_halving.min(now);
        let halvings = now.since(self.last_halving).get() / HALF_LIFE.get();
        if halvings > 0 {
            self.last_halving = now;
            let by = u32::try_from(halvings).unwrap_or(u32::MAX);
            self.counters.iter_mut().for_each(|counter| *counter = counter.checked_shr(by).unwrap_or(0));
        }
    }

    fn estimate(&self, user: u64) -> u32 {
        counter_indexes(user).filter_map(|place| self.counters.get(place).copied()).min().unwrap_or(0)
    }
}

/// A counter in each row.
fn counter_indexes(user: u64) -> impl Iterator<Item = usize> {
    (0..ROWS).map(move |row| {
        let mixed = (user ^ row as u64)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(23)
            .wrapping_mul(0xd6e8_feb8_6659_fd93);
        row * COLUMNS + (mixed >> 54) as usize
    })
}

/// A coarse logarithm: four steps for each doubling.
fn usage_step(used: u32) -> u16 {
    let used = u64::from(used) + 1;
    let doublings = used.ilog2();
    let quarter = if doublings < 2 { 0 } else { (used >> (doublings - 2)) & 3 };
    (doublings as u16 * 4 + quarter as u16).min(USAGE_STEPS - 1)
}
