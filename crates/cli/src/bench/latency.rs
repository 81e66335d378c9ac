//! A latency histogram in constant memory.

use hdrhistogram::Histogram;
use tidegate_core::Micros;

/// Counts latencies up to one hour, with a precision of three digits.
#[derive(Clone, Debug)]
pub(crate) struct LatencyHistogram {
    histogram: Histogram<u64>,
    sum: u128,
    max: Micros,
}

const SIGNIFICANT_DIGITS: u8 = 3;
const MAX_RECORDED: Micros = Micros::from_secs(3_600);

impl Default for LatencyHistogram {
    #[expect(clippy::expect_used, reason = "bounds and digits are constants in the range of the library")]
    fn default() -> Self {
        let histogram = Histogram::new_with_max(MAX_RECORDED.get(), SIGNIFICANT_DIGITS);
        let histogram = histogram.expect("valid bounds and digits");
        Self { histogram, sum: 0, max: Micros::ZERO }
    }
}

impl LatencyHistogram {
    /// Records a latency. One above an hour counts as one hour; mean and maximum stay exact.
    pub(crate) fn record(&mut self, latency: Micros) {
        self.histogram.saturating_record(latency.get());
        self.sum += u128::from(latency.get());
        self.max = self.max.max(latency);
    }

    pub(crate) fn count(&self) -> u64 {
        self.histogram.len()
    }

    pub(crate) fn max(&self) -> Micros {
        self.max
    }

    pub(crate) fn mean(&self) -> Micros {
        Micros::new(u64::try_from(self.sum / u128::from(self.count().max(1))).unwrap_or(u64::MAX))
    }

    /// Returns the latency at this quantile, in thousandths.
    pub(crate) fn permille(&self, permille: u32) -> Micros {
        Micros::new(self.histogram.value_at_quantile(f64::from(permille) / 1_000.0)).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_count_all_latencies() {
        let mut latency = LatencyHistogram::default();
        (1..=1_000).for_each(|millis| latency.record(Micros::from_millis(millis)));
        for (permille, millis) in [(500, 500), (990, 990), (999, 999), (1_000, 1_000)] {
            let found = latency.permille(permille).get() / 1_000;
            assert!((millis..=millis + millis / 500).contains(&found), "{permille}: {found}");
        }
        assert_eq!((latency.mean(), latency.max()), (Micros::new(500_500), Micros::from_secs(1)));
    }

    #[test]
    fn latency_above_the_range_keeps_its_maximum() {
        let mut latency = LatencyHistogram::default();
        latency.record(Micros::MAX);
        latency.record(Micros::ZERO);
        assert_eq!((latency.count(), latency.max()), (2, Micros::MAX));
        assert!(latency.permille(1_000) >= MAX_RECORDED);
        assert_eq!(latency.permille(500), Micros::ZERO);
    }
}
