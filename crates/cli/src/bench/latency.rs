//! How long answers took, in a fixed amount of memory.

use tidegate_core::Micros;

/// Counts of lengths, true to one part in 128.
#[derive(Clone, Debug)]
pub(crate) struct Latency {
    counts: Vec<u64>,
    all: u64,
    sum: u128,
    most: Micros,
}

/// Parts of a power of two, as a power of two.
const PARTS: u32 = 7;

impl Default for Latency {
    fn default() -> Self {
        let places = (64 - PARTS as usize + 1) << PARTS;
        Self { counts: vec![0; places], all: 0, sum: 0, most: Micros::ZERO }
    }
}

impl Latency {
    pub(crate) fn add(&mut self, took: Micros) {
        self.counts[place(took.get())] += 1;
        self.all += 1;
        self.sum += u128::from(took.get());
        self.most = self.most.max(took);
    }

    pub(crate) fn count(&self) -> u64 {
        self.all
    }

    pub(crate) fn most(&self) -> Micros {
        self.most
    }

    pub(crate) fn mean(&self) -> Micros {
        Micros::new(u64::try_from(self.sum / u128::from(self.all.max(1))).unwrap_or(u64::MAX))
    }

    /// So many of a thousand took no longer.
    pub(crate) fn permille(&self, permille: u64) -> Micros {
        let wanted = (u128::from(self.all) * u128::from(permille)).div_ceil(1_000).max(1);
        let mut seen = 0;
        for (place, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= wanted {
                return Micros::new(last(place)).min(self.most);
            }
        }
        self.most
    }
}

/// Small ones have a place each; others share it with those that begin with the same eight bits.
fn place(micros: u64) -> usize {
    let power = (64 - micros.leading_zeros()).saturating_sub(PARTS + 1);
    ((power as usize) << PARTS) + (micros >> power) as usize
}

/// The largest of a place.
fn last(place: usize) -> u64 {
    let (power, part) = (place >> PARTS, (place & ((1 << PARTS) - 1)) as u64);
    match power {
        0 => part,
        // The first power has both halves: those below 128 and those up to 255.
        power => {
            let next = u128::from((part | 1 << PARTS) + 1) << (power - 1);
            u64::try_from(next - 1).unwrap_or(u64::MAX)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_is_kept_to_a_part_in_128() {
        for micros in (0..300).chain([1_000, 123_456, 10_000_000, 987_654_321, u64::MAX / 2]) {
            let kept = last(place(micros));
            assert!(kept >= micros && kept - micros <= micros / 128, "{micros} is kept as {kept}");
        }
        assert!(place(u64::MAX) < Latency::default().counts.len());
    }

    #[test]
    fn percentiles_are_those_of_all() {
        let mut latency = Latency::default();
        (1..=1_000).for_each(|millis| latency.add(Micros::from_millis(millis)));
        for (permille, millis) in [(500, 500), (990, 990), (999, 999), (1_000, 1_000)] {
            let found = latency.permille(permille).get() / 1_000;
            assert!((millis..=millis + millis / 100).contains(&found), "{permille}: {found}");
        }
        assert_eq!((latency.mean(), latency.most()), (Micros::new(500_500), Micros::from_secs(1)));
    }
}
