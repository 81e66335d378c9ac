//! Decisions over time, in a bounded number of bins.

use tidegate_core::Micros;

/// The maximum number of bins.
const MAX_BINS: usize = 120;
const MICROS_PER_SECOND: u64 = 1_000_000;
/// Readable bin widths, in seconds.
const BIN_WIDTHS: [u64; 15] =
    [1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];

/// Decisions over time. If there are too many bins, they become wider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    start: u64,
    width: u64,
    bins: Vec<TimelineBin>,
}

/// The decisions in one bin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimelineBin {
    /// Requests admitted without a delay.
    pub admitted: u64,
    /// Requests admitted after a delay.
    pub delayed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Requests that would have been denied if the rule were enforced.
    pub shadow: u64,
}

impl TimelineBin {
    fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.delayed += other.delayed;
        self.denied += other.denied;
        self.shadow += other.shadow;
    }

    /// The number of requests. Shadow denials are among the admitted and delayed ones.
    pub fn requests(&self) -> u64 {
        self.admitted + self.delayed + self.denied
    }
}

impl Timeline {
    /// Creates a timeline that starts at this time.
    pub fn new(start: Micros) -> Self {
        Self {
            start: start.get() / MICROS_PER_SECOND * MICROS_PER_SECOND,
            width: MICROS_PER_SECOND,
            bins: Vec::new(),
        }
    }

    /// Returns the bin of a time, which must not be before the start.
    #[inline]
    pub fn bin_at(&mut self, time: Micros) -> &mut TimelineBin {
        let since = time.get().saturating_sub(self.start);
        if since / self.width >= MAX_BINS as u64 {
            self.widen(time);
        }
        let place = (time.get().saturating_sub(self.start) / self.width) as usize;
        if place >= self.bins.len() {
            self.bins.resize(place + 1, TimelineBin::default());
        }
        &mut self.bins[place]
    }

    /// The start time.
    pub fn start(&self) -> Micros {
        Micros::new(self.start)
    }

    /// The width of a bin.
    pub fn width(&self) -> Micros {
        Micros::new(self.width)
    }

    /// The bins.
    pub fn bins(&self) -> &[TimelineBin] {
        &self.bins
    }

    /// Widens the bins. Bins start at multiples of their width, so they can be merged.
    #[cold]
    fn widen(&mut self, time: Micros) {
        let (start, width) = (self.start, self.width);
        let fits = |width: u64| (time.get() - start / width * width) / width < MAX_BINS as u64;
        let readable =
            BIN_WIDTHS.iter().map(|seconds| seconds * MICROS_PER_SECOND).filter(|wider| wider % width == 0);
        let next = readable
            .chain((1..=40).map(|days| (1 << days) * 86_400 * MICROS_PER_SECOND))
            .find(|wider| fits(*wider));
        self.width = next.unwrap_or(u64::MAX / 2);
        self.start = start / self.width * self.width;
        let mut bins = Vec::new();
        for (place, bin) in self.bins.iter().enumerate() {
            let at = start + place as u64 * width;
            let place = ((at - self.start) / self.width) as usize;
            if place >= bins.len() {
                bins.resize(place + 1, TimelineBin::default());
            }
            bins[place].add(*bin);
        }
        self.bins = bins;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widening_bins_keeps_counts() {
        let start = 1_431_857_103;
        let mut timeline = Timeline::new(Micros::from_secs(start));
        for second in (0..400_000).step_by(7) {
            timeline.bin_at(Micros::from_secs(start + second)).admitted += 1;
        }
        let all: u64 = timeline.bins().iter().map(|bin| bin.admitted).sum();
        assert_eq!(all, 400_000_u64.div_ceil(7));
        assert!(timeline.bins().len() <= MAX_BINS);
        assert_eq!(timeline.width(), Micros::from_secs(3_600));
        assert_eq!(timeline.start().get() % timeline.width().get(), 0);
    }
}
