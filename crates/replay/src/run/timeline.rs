//! What happened when, in a bounded number of bins.

use tidegate_core::Micros;

/// How many bins there are at most.
const MOST: usize = 120;
const SECOND: u64 = 1_000_000;
/// Widths that people can read.
const WIDTHS: [u64; 15] = [1, 2, 5, 10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400];

/// What happened when. When there are too many bins, they become wider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timeline {
    start: u64,
    width: u64,
    bins: Vec<Bin>,
}

/// What happened in a part of the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Went at once.
    pub admitted: u64,
    /// Went after a wait.
    pub delayed: u64,
    /// Did not go.
    pub denied: u64,
    /// Would not have gone, were the rule enforced.
    pub shadow: u64,
}

impl Bin {
    fn add(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.delayed += other.delayed;
        self.denied += other.denied;
        self.shadow += other.shadow;
    }

    /// All of them; what is only in shadow goes, and is counted there.
    pub fn requests(&self) -> u64 {
        self.admitted + self.delayed + self.denied
    }
}

impl Timeline {
    /// One that starts with the bin of this moment.
    pub fn new(start: Micros) -> Self {
        Self { start: start.get() / SECOND * SECOND, width: SECOND, bins: Vec::new() }
    }

    /// The bin of a moment; time does not go back.
    #[inline]
    pub fn at(&mut self, moment: Micros) -> &mut Bin {
        let since = moment.get().saturating_sub(self.start);
        if since / self.width >= MOST as u64 {
            self.widen(moment);
        }
        let place = (moment.get().saturating_sub(self.start) / self.width) as usize;
        if place >= self.bins.len() {
            self.bins.resize(place + 1, Bin::default());
        }
        &mut self.bins[place]
    }

    /// When it starts.
    pub fn start(&self) -> Micros {
        Micros::new(self.start)
    }

    /// How long a bin is.
    pub fn width(&self) -> Micros {
        Micros::new(self.width)
    }

    /// What happened in each.
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// Bins start at round moments, so that they can be put together.
    #[cold]
    fn widen(&mut self, moment: Micros) {
        let (start, width) = (self.start, self.width);
        let fits = |width: u64| (moment.get() - start / width * width) / width < MOST as u64;
        let readable = WIDTHS.iter().map(|seconds| seconds * SECOND).filter(|wider| wider % width == 0);
        let next =
            readable.chain((1..=40).map(|days| (1 << days) * 86_400 * SECOND)).find(|wider| fits(*wider));
        self.width = next.unwrap_or(u64::MAX / 2);
        self.start = start / self.width * self.width;
        let mut bins = Vec::new();
        for (place, bin) in self.bins.iter().enumerate() {
            let at = start + place as u64 * width;
            let place = ((at - self.start) / self.width) as usize;
            if place >= bins.len() {
                bins.resize(place + 1, Bin::default());
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
    fn nothing_is_lost_as_bins_become_wider() {
        let start = 1_431_857_103;
        let mut timeline = Timeline::new(Micros::from_secs(start));
        for second in (0..400_000).step_by(7) {
            timeline.at(Micros::from_secs(start + second)).admitted += 1;
        }
        let all: u64 = timeline.bins().iter().map(|bin| bin.admitted).sum();
        assert_eq!(all, 400_000_u64.div_ceil(7));
        assert!(timeline.bins().len() <= MOST);
        assert_eq!(timeline.width(), Micros::from_secs(3_600));
        assert_eq!(timeline.start().get() % timeline.width().get(), 0);
    }
}
