//! What a class asks for: how many at once, and how important they are.

use tidegate_core::Micros;

/// What was asked for lately.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassDemand {
    /// When the current interval began.
    interval_start: Micros,
    arrivals: u32,
    admitted: u32,
    completed: u32,
    hold_time: u64,
    /// Arrivals per microsecond, and how long one holds its slot: smoothed over some intervals.
    arrival_rate: f64,
    mean_hold: f64,
    /// The part of the arrivals that is to be turned away first, from 0 to 1.
    excess_ratio: f64,
    /// The ranks of the latest arrivals.
    ranks: Vec<u16>,
    next_rank: usize,
    wanted_slots: u64,
}

/// Who finds the last slots closed, and how many of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankThreshold {
    /// Arrivals of a lower rank do.
    pub(super) rank: u16,
    /// No more than the others will want within moments.
    pub(super) slots: u64,
}

/// How often the numbers are looked at.
const UPDATE_INTERVAL: Micros = Micros::from_millis(100);
/// After so many intervals without a word nothing is known any more.
const MAX_IDLE_INTERVALS: u64 = 20;
/// How much of a lower value is taken over in each interval; a higher one is taken over at once.
const DECAY: f64 = 0.3;
/// Arrivals whose ranks are remembered.
const RANK_SAMPLES: usize = 512;

impl ClassDemand {
    /// Somebody asks.
    pub(super) fn record_arrival(&mut self, rank: u16) {
        self.arrivals = self.arrivals.saturating_add(1);
        if self.ranks.is_empty() {
            self.ranks = vec![rank; RANK_SAMPLES];
        }
        if let Some(slot) = self.ranks.get_mut(self.next_rank) {
            *slot = rank;
        }
        self.next_rank = (self.next_rank + 1) % RANK_SAMPLES;
    }

    /// Somebody was let in.
    pub(super) fn record_admission(&mut self) {
        self.admitted = self.admitted.saturating_add(1);
    }

    /// Somebody has left after `held`.
    pub(super) fn record_completion(&mut self, held: Micros) {
        self.completed = self.completed.saturating_add(1);
        self.hold_time = self.hold_time.saturating_add(held.get());
    }

    /// How many slots it will want at once, most of the time.
    pub(super) fn wanted_slots(&self) -> u64 {
        self.wanted_slots
    }

    /// Ends the interval if it is time; says which arrivals are to be turned away first.
    pub(super) fn advance(&mut self, now: Micros) -> Option<RankThreshold> {
        // If time was set back, the interval begins again.
        self.interval_start = self.interval_start.min(now);
        let elapsed = now.since(self.interval_start);
        if elapsed < UPDATE_INTERVAL {
            return None;
        }
        let intervals = elapsed.get() / UPDATE_INTERVAL.get();
        if intervals >= MAX_IDLE_INTERVALS {
            (self.arrival_rate, self.excess_ratio) = (0.0, 0.0);
        }
        let rate = f64::from(self.arrivals) / elapsed.get() as f64;
        self.arrival_rate = rate.max(self.arrival_rate + (rate - self.arrival_rate) * DECAY);
        if self.completed > 0 {
            let hold = self.hold_time as f64 / f64::from(self.completed);
            self.mean_hold = hold.max(self.mean_hold + (hold - self.mean_hold) * DECAY);
        }
        let turned_away = self.arrivals - self.admitted.min(self.arrivals);
        self.excess_ratio = match turned_away {
            0 => self.excess_ratio / 2.0,
            _ => f64::from(turned_away) / f64::from(self.arrivals),
        };
        let mean = (self.arrival_rate * self.mean_hold).min(1e9) as u64;
        // Chance: as many as three times the spread of arrivals that know nothing of each other.
        self.wanted_slots = mean + 3 * mean.isqrt() + u64::from(self.arrivals > 0);
        (self.interval_start, self.arrivals, self.admitted, self.completed, self.hold_time) =
            (now, 0, 0, 0, 0);
        Some(self.compute_threshold())
    }

    /// The rank below which so many arrivals lie as are to be turned away, or more; but somebody is always above it.
    fn compute_threshold(&self) -> RankThreshold {
        let mut sorted = self.ranks.clone();
        sorted.sort_unstable();
        let excess = (self.excess_ratio * RANK_SAMPLES as f64) as usize;
        let rank = match (sorted.get(excess.min(RANK_SAMPLES - 1)), sorted.last()) {
            (Some(rank), Some(highest)) if excess > 0 => (rank + 1).min(*highest),
            _ => return RankThreshold::default(),
        };
        let above = sorted.len() - sorted.partition_point(|it| *it < rank);
        // Twice as many as they hold on average: nothing is kept for those who come once in a while.
        let wanted = 2.0 * self.arrival_rate * self.mean_hold * above as f64 / RANK_SAMPLES as f64;
        RankThreshold { rank, slots: wanted as u64 }
    }
}
