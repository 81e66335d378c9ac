//! A random number generator and random quotas.

use tidegate_core::{
    AlgorithmKind, CalendarPeriod, LARGEST_EXACT, Micros, Quota, Rate, RateUnit, TimeZone,
    algorithm::{
        CalendarWindow, Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingStrict, SlidingWindow,
        Smooth, TokenBucket, Total, WarmUp, WindowStart,
    },
};

/// A seeded random number generator: xorshift64*.
pub(super) struct Rng(pub(super) u64);

impl Rng {
    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(super) fn next_below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    pub(super) fn one_in(&mut self, times: u64) -> bool {
        self.next_below(times) == 0
    }

    fn pick(&mut self, values: &[u64]) -> u64 {
        values[self.next_below(values.len() as u64) as usize]
    }

    fn pick_rate(&mut self) -> Rate {
        let amounts = [1, 2, 3, 5, 7, 10, 60, 100, 1_000, 65_537, 999_983, 1_500_000, 12_500_000_000];
        let periods = [
            7,
            60,
            1_000,
            33_333,
            100_000,
            1_000_000,
            10_000_000,
            60_000_000,
            3_600_000_000,
            86_400_000_000,
            604_800_000_000,
        ];
        Rate::new(self.pick(&amounts), Micros::new(self.pick(&periods)))
    }

    /// A random quota of the algorithm with this index in [`AlgorithmKind::names`], or of any algorithm.
    pub(super) fn pick_quota(&mut self, kind: Option<u64>) -> Quota {
        let names = AlgorithmKind::names().count() as u64;
        loop {
            let kind = kind.unwrap_or_else(|| self.next_below(names));
            let rate = self.pick_rate();
            let some = self.pick(&[1, 2, 3, 5, 10, 100, 1_000, 1_000_000]);
            let few = 1 + self.next_below(40);
            let made = match kind {
                0 if self.one_in(3) => TokenBucket::with_initial(rate, some, self.next_below(some + 1))
                    .map(AlgorithmKind::TokenBucket),
                0 => TokenBucket::new(rate, some).map(AlgorithmKind::TokenBucket),
                1 => LeakyBucket::new(rate, some, self.next_below(some + 1)).map(AlgorithmKind::LeakyBucket),
                2 if self.one_in(2) => {
                    FixedWindow::new(rate, WindowStart::FirstHit).map(AlgorithmKind::FixedWindow)
                }
                2 if self.one_in(2) => {
                    FixedWindow::new(rate, WindowStart::Epoch).map(AlgorithmKind::FixedWindow)
                }
                2 => FixedWindow::new(rate, WindowStart::Calendar).map(AlgorithmKind::FixedWindow),
                3 => SlidingWindow::new(rate).map(AlgorithmKind::SlidingWindow),
                4 => SlidingStrict::new(rate, few).map(AlgorithmKind::SlidingStrict),
                5 => SlidingLog::new(Rate::new(few, rate.period())).map(AlgorithmKind::SlidingLog),
                6 if self.one_in(2) => Smooth::with_burst(rate, some).map(AlgorithmKind::Smooth),
                6 => Smooth::new(rate).map(AlgorithmKind::Smooth),
                7 => {
                    let warm_up = Micros::new(self.pick(&[1_000, 500_000, 4_000_000, 60_000_000]));
                    WarmUp::new(rate, warm_up, 1.0 + self.next_below(50) as f64 / 10.0)
                        .map(AlgorithmKind::WarmUp)
                }
                8 => Concurrency::with_lease(few, rate.period()).map(AlgorithmKind::Concurrency),
                9 => Total::new(some, RateUnit::Requests).map(AlgorithmKind::Total),
                // The test below fails for an algorithm without an arm.
                _ => {
                    let zones = ["UTC", "Asia/Shanghai", "America/New_York", "Australia/Lord_Howe"];
                    let periods = [CalendarPeriod::Day, CalendarPeriod::Week, CalendarPeriod::Month];
                    let (zone, period) = (self.next_below(4) as usize, self.next_below(3) as usize);
                    TimeZone::find(zones[zone])
                        .and_then(|zone| CalendarWindow::new(rate, periods[period], zone))
                        .map(AlgorithmKind::CalendarWindow)
                }
            };
            // Beyond this, Lua's doubles are not exact and the results may differ.
            if let Some(kind) = made.ok().filter(|kind| kind.limit() < LARGEST_EXACT / 4) {
                return kind.into();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_quotas_cover_each_algorithm() {
        let mut rng = Rng(1);
        for index in 0..AlgorithmKind::names().count() {
            let quota = rng.pick_quota(Some(index as u64));
            assert_eq!(quota.kind().index(), index, "add the algorithm to `pick_quota`");
        }
    }
}
