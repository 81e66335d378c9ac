//! What a class asks for: how many at once, and how important they are.

use tidegate_core::Micros;

/// What was asked for lately.
#[derive(Clone, Debug, Default)]
pub(super) struct Demand {
    /// When the current interval began.
    since: Micros,
    asked: u32,
    admitted: u32,
    served: u32,
    held: u64,
    /// Arrivals per microsecond, and how long one holds its slot: smoothed over some intervals.
    rate: f64,
    hold: f64,
    /// The part of the arrivals that is to be turned away first, from 0 to 1.
    excess: f64,
    /// The ranks of the latest arrivals.
    ranks: Vec<u16>,
    next: usize,
    wanted: u64,
}

/// Who finds the last slots closed, and how many of them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Bar {
    /// Arrivals of a lower rank do.
    pub(super) rank: u16,
    /// No more than the others will want within moments.
    pub(super) slots: u64,
}

/// How often the numbers are looked at.
const INTERVAL: Micros = Micros::from_millis(100);
/// After so many intervals without a word nothing is known any more.
const MEMORY: u64 = 20;
/// How much of a lower value is taken over in each interval; a higher one is taken over at once.
const FADING: f64 = 0.3;
/// Arrivals whose ranks are remembered.
const RANKS: usize = 512;

impl Demand {
    /// Somebody asks.
    pub(super) fn ask(&mut self, rank: u16) {
        self.asked = self.asked.saturating_add(1);
        if self.ranks.is_empty() {
            self.ranks = vec![rank; RANKS];
        }
        if let Some(slot) = self.ranks.get_mut(self.next) {
            *slot = rank;
        }
        self.next = (self.next + 1) % RANKS;
    }

    /// Somebody was let in.
    pub(super) fn admit(&mut self) {
        self.admitted = self.admitted.saturating_add(1);
    }

    /// Somebody has left after `held`.
    pub(super) fn serve(&mut self, held: Micros) {
        self.served = self.served.saturating_add(1);
        self.held = self.held.saturating_add(held.get());
    }

    /// How many slots it will want at once, most of the time.
    pub(super) fn wanted(&self) -> u64 {
        self.wanted
    }

    /// Ends the interval if it is time; says which arrivals are to be turned away first.
    pub(super) fn advance(&mut self, now: Micros) -> Option<Bar> {
        // If time was set back, the interval begins again.
        self.since = self.since.min(now);
        let elapsed = now.since(self.since);
        if elapsed < INTERVAL {
            return None;
        }
        let intervals = elapsed.get() / INTERVAL.get();
        if intervals >= MEMORY {
            (self.rate, self.excess) = (0.0, 0.0);
        }
        let rate = f64::from(self.asked) / elapsed.get() as f64;
        self.rate = rate.max(self.rate + (rate - self.rate) * FADING);
        if self.served > 0 {
            let hold = self.held as f64 / f64::from(self.served);
            self.hold = hold.max(self.hold + (hold - self.hold) * FADING);
        }
        let turned_away = self.asked - self.admitted.min(self.asked);
        self.excess = match turned_away {
            0 => self.excess / 2.0,
            _ => f64::from(turned_away) / f64::from(self.asked),
        };
        let mean = (self.rate * self.hold).min(1e9) as u64;
        // Chance: as many as three times the spread of arrivals that know nothing of each other.
        self.wanted = mean + 3 * mean.isqrt() + u64::from(self.asked > 0);
        (self.since, self.asked, self.admitted, self.served, self.held) = (now, 0, 0, 0, 0);
        Some(self.bar())
    }

    /// The rank below which so many arrivals lie as are to be turned away, or more; but somebody is always above it.
    fn bar(&self) -> Bar {
        let mut sorted = self.ranks.clone();
        sorted.sort_unstable();
        let excess = (self.excess * RANKS as f64) as usize;
        let rank = match (sorted.get(excess.min(RANKS - 1)), sorted.last()) {
            (Some(rank), Some(highest)) if excess > 0 => (rank + 1).min(*highest),
            _ => return Bar::default(),
        };
        let above = sorted.len() - sorted.partition_point(|it| *it < rank);
        // Twice as many as they hold on average: nothing is kept for those who come once in a while.
        let wanted = 2.0 * self.rate * self.hold * above as f64 / RANKS as f64;
        Bar { rank, slots: wanted as u64 }
    }
}
