//! The demand of a class: the slots it needs, and the ranks of its requests.

use tidegate_core::Micros;

/// The recent demand of a class.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassDemand {
    /// When the current interval started.
    interval_start: Micros,
    arrivals: u32,
    admitted: u32,
    completed: u32,
    hold_time: u64,
    /// Arrivals per microsecond, and the mean time that a slot is in use: smoothed over several intervals.
    arrival_rate: f64,
    mean_hold: f64,
    /// The share of arrivals to shed first, from 0 to 1.
    excess_ratio: f64,
    /// The ranks of the most recent arrivals.
    ranks: Vec<u16>,
    next_rank: usize,
    wanted_slots: u64,
}

/// The threshold below which requests cannot use the last slots.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RankThreshold {
    /// The minimum rank for the last slots.
    pub(super) rank: u16,
    /// The number of last slots: at most what higher ranks need soon.
    pub(super) slots: u64,
}

/// How often the numbers are updated.
const UPDATE_INTERVAL: Micros = Micros::from_millis(100);
/// The number of idle intervals after which the statistics expire.
const MAX_IDLE_INTERVALS: u64 = 20;
/// The weight of a lower value in each interval; a higher one is adopted at once.
const DECAY: f64 = 0.3;
/// The number of recent arrivals whose ranks are stored.
const RANK_SAMPLES: usize = 512;

impl ClassDemand {
    /// Records a request.
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

    /// Records an admitted request.
    pub(super) fn record_admission(&mut self) {
        self.admitted = self.admitted.saturating_add(1);
    }

    /// Records a completed request that used its slot for `duration`.
    pub(super) fn record_completion(&mut self, duration: Micros) {
        self.completed = self.completed.saturating_add(1);
        self.hold_time = self.hold_time.saturating_add(duration.get());
    }

    /// The number of slots that the class needs most of the time.
    pub(super) fn wanted_slots(&self) -> u64 {
        self.wanted_slots
    }

    /// Ends the interval if it is over, and returns the rank threshold.
    pub(super) fn advance(&mut self, now: Micros) -> Option<RankThreshold> {
        // If the clock was set back, the interval restarts.
        self.interval_start = self.interval_start.min(now);
        let elapsed = now.saturating_sub(self.interval_start);
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
        let shed = self.arrivals - self.admitted.min(self.arrivals);
        self.excess_ratio = match shed {
            0 => self.excess_ratio / 2.0,
            _ => f64::from(shed) / f64::from(self.arrivals),
        };
        let mean = (self.arrival_rate * self.mean_hold).min(1e9) as u64;
        // Random variation: three standard deviations of independent arrivals.
        self.wanted_slots = mean + 3 * mean.isqrt() + u64::from(self.arrivals > 0);
        (self.interval_start, self.arrivals, self.admitted, self.completed, self.hold_time) =
            (now, 0, 0, 0, 0);
        Some(self.compute_threshold())
    }

    /// The rank below which at least the share of arrivals to shed lies; some arrival is always above it.
    fn compute_threshold(&self) -> RankThreshold {
        let mut sorted = self.ranks.clone();
        sorted.sort_unstable();
        let excess = (self.excess_ratio * RANK_SAMPLES as f64) as usize;
        let rank = match (sorted.get(excess.min(RANK_SAMPLES - 1)), sorted.last()) {
            (Some(rank), Some(highest)) if excess > 0 => (rank + 1).min(*highest),
            _ => return RankThreshold::default(),
        };
        let above = sorted.len() - sorted.partition_point(|it| *it < rank);
        // Twice the average use: no slots are reserved for rare requests.
        let wanted = 2.0 * self.arrival_rate * self.mean_hold * above as f64 / RANK_SAMPLES as f64;
        RankThreshold { rank, slots: wanted as u64 }
    }
}
