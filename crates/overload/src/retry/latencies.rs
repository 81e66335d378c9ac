//! The percentile of recent latencies, from which a call counts as slow.

use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate_core::{Micros, Percent};
use tidegate_limiter::sync::{Mutex, lock};

/// The percentile of the latencies of the last window, until the next one ends. Reading it takes no lock.
pub(super) struct RecentLatencies {
    percentile: Percent,
    /// In microseconds; [`UNKNOWN`] without enough samples.
    value: AtomicU64,
    /// The time until which the value is valid, in microseconds.
    valid_until: AtomicU64,
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
        Self { percentile, value: AtomicU64::new(UNKNOWN), valid_until: AtomicU64::new(0), window }
    }

    /// The percentile; `None` if there are not enough recent samples.
    pub(super) fn percentile(&self, now: Micros) -> Option<Micros> {
        // A value that another thread is replacing may be combined with the wrong time, which does no harm.
        let is_valid = now.get() < self.valid_until.load(Ordering::Relaxed);
        let value = self.value.load(Ordering::Relaxed);
        (is_valid && value != UNKNOWN).then_some(Micros::new(value))
    }

    /// Records the latency of an attempt that ended at `now`.
    pub(super) fn record(&self, latency: Micros, now: Micros) {
        let mut window = lock(&self.window);
        let LatencyWindow { histogram: Some(histogram), started_at } = &mut *window else { return };
        // After a pause the samples from before it are too old.
        if started_at.is_some_and(|start| now.saturating_sub(start) >= WINDOW.saturating_add(WINDOW)) {
            histogram.reset();
            *started_at = None;
        }
        histogram.saturating_record(latency.get());
        let start = *started_at.get_or_insert(now);
        let is_over = now.saturating_sub(start) >= WINDOW;
        let has_samples = histogram.len() >= MIN_SAMPLES;
        if is_over || (has_samples && self.percentile(now).is_none()) {
            let value = match has_samples {
                true => histogram.value_at_quantile(self.percentile.as_f64()),
                false => UNKNOWN,
            };
            let valid_from = if is_over { now } else { start };
            self.value.store(value, Ordering::Relaxed);
            self.valid_until.store(valid_from.saturating_add(WINDOW).get(), Ordering::Relaxed);
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
        let percentile = |second| latencies.percentile(Micros::from_secs(second));
        (1..20).for_each(|millis| record(millis, 0));
        assert_eq!(percentile(0), None, "19 samples");
        record(20, 0);
        let close = |expected: u64, second| {
            let value = percentile(second).unwrap().get();
            assert!(value.abs_diff(expected * 1_000) <= expected * 10, "{value} µs, {expected} ms");
        };
        close(18, 0);
        (0..100).for_each(|_| record(100, 5));
        close(18, 5);
        record(100, 10);
        close(100, 10);
        close(100, 19);
        record(7, 20);
        assert_eq!(percentile(20), None, "one sample in the last window");
    }

    #[test]
    fn percentile_expires_without_calls() {
        let latencies = RecentLatencies::new("90%".parse().unwrap());
        let record =
            |millis, second| latencies.record(Micros::from_millis(millis), Micros::from_secs(second));
        let percentile = |second| latencies.percentile(Micros::from_secs(second));
        (0..30).for_each(|_| record(100, 0));
        assert!(percentile(9).is_some());
        assert_eq!(percentile(10), None, "no calls in the last window");
        (0..19).for_each(|_| record(7, 60));
        assert_eq!(percentile(60), None, "samples from before the pause are too old");
        record(7, 60);
        assert!(percentile(60).is_some_and(|value| value < Micros::from_millis(8)), "{:?}", percentile(60));
    }
}
