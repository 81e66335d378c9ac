//! The percentile of recent latencies, from which a call counts as slow.

use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Micros, Percent};
use tidegate_limiter::sync::{Mutex, lock};

/// The percentile of the latencies of the last window. Reading it takes no lock.
pub(super) struct RecentLatencies {
    percentile: Percent,
    /// In microseconds; [`UNKNOWN`] without enough samples.
    value: AtomicU64,
    window: Mutex<LatencyWindow>,
}

struct LatencyWindow {
    /// `None` only if its constant bounds were invalid.
    histogram: Option<Histogram<u32>>,
    started_at: Option<Micros>,
}

const UNKNOWN: u64 = u64::MAX;
/// The number of samples from which a percentile is known.
const MIN_SAMPLES: u64 = 20;
/// The time after which the percentile follows the latencies measured meanwhile.
const WINDOW: Micros = Micros::from_secs(10);
/// Longer latencies count as this one.
const MAX_LATENCY: Micros = Micros::from_secs(3_600);

impl RecentLatencies {
    pub(super) fn new(percentile: Percent) -> Self {
        // Two digits are enough for a delay, in about 13 kilobytes.
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY.get(), 2).ok();
        let window = Mutex::new(LatencyWindow { histogram, started_at: None });
        Self { percentile, value: AtomicU64::new(UNKNOWN), window }
    }

    /// The percentile; `None` before there are enough samples.
    pub(super) fn percentile(&self) -> Option<Micros> {
        Some(self.value.load(Ordering::Relaxed)).filter(|value| *value != UNKNOWN).map(Micros::new)
    }

    /// Records the latency of an attempt that ended at `now`.
    pub(super) fn record(&self, latency: Micros, now: Micros) {
        let mut window = lock(&self.window);
        let LatencyWindow { histogram: Some(histogram), started_at } = &mut *window else { return };
        histogram.saturating_record(latency.get());
        let is_over = now.saturating_sub(*started_at.get_or_insert(now)) >= WINDOW;
        let has_samples = histogram.len() >= MIN_SAMPLES;
        if is_over || (has_samples && self.percentile().is_none()) {
            let value = match has_samples {
                true => histogram.value_at_quantile(self.percentile.as_f64()),
                false => UNKNOWN,
            };
            self.value.store(value, Ordering::Relaxed);
        }
        if is_over {
            histogram.reset();
            *started_at = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "this is how a test fails")]

    use super::*;

    #[test]
    fn percentile_follows_window_and_expires() {
        let latencies = RecentLatencies::new("90%".parse().unwrap());
        let record =
            |millis, second| latencies.record(Micros::from_millis(millis), Micros::from_secs(second));
        (1..20).for_each(|millis| record(millis, 0));
        assert_eq!(latencies.percentile(), None, "19 samples");
        record(20, 0);
        let close = |expected: u64| {
            let value = latencies.percentile().unwrap().get();
            assert!(value.abs_diff(expected * 1_000) <= expected * 10, "{value} µs, {expected} ms");
        };
        close(18);
        (0..100).for_each(|_| record(100, 5));
        close(18);
        record(100, 10);
        close(100);
        record(7, 20);
        assert_eq!(latencies.percentile(), None, "one sample in the last window");
    }
}
