//! Latency histograms.

use super::shard::SingleWriterCounter;
use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_http_server::MetricValue;

/// A latency histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LatencyBuckets {
    pub(crate) counts: [u64; Self::BUCKET_COUNT],
    /// The sum of all latencies, in microseconds.
    pub(crate) sum: u64,
}

/// A latency histogram with one writer.
#[derive(Default)]
pub struct LatencyRecorder {
    counts: [SingleWriterCounter; LatencyBuckets::BUCKET_COUNT],
    sum: SingleWriterCounter,
}

impl LatencyBuckets {
    /// The upper bounds of all buckets but the last, in microseconds: from the time of a decision in memory to that of a
    /// slow request.
    pub(crate) const BUCKET_BOUNDS: [u64; 24] = [
        1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000,
        500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
    ];
    pub(crate) const BUCKET_COUNT: usize = Self::BUCKET_BOUNDS.len() + 1;
    /// The first bound of request histograms: no request is faster than a round trip.
    const MIN_REQUEST_BOUND: u64 = 100;

    /// The index of the bucket of this latency.
    pub(crate) fn bucket_index(took: Micros) -> usize {
        Self::BUCKET_BOUNDS.partition_point(|end| *end < took.get())
    }

    /// Adds the counts of another histogram.
    pub fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.sum += other.sum;
    }

    /// The metric of decision times.
    pub(crate) fn histogram(&self) -> MetricValue {
        let (bounds, counts) = (Self::BUCKET_BOUNDS.to_vec(), self.counts.to_vec());
        MetricValue::Histogram { bounds, counts, sum: self.sum }
    }

    /// The metric of request and queue times, with buckets from 100 µs.
    pub(crate) fn request_histogram(&self) -> MetricValue {
        let first = Self::BUCKET_BOUNDS.iter().take_while(|end| **end < Self::MIN_REQUEST_BOUND).count();
        let mut counts = self.counts[first..].to_vec();
        counts[0] += self.counts[..first].iter().sum::<u64>();
        MetricValue::Histogram { bounds: Self::BUCKET_BOUNDS[first..].to_vec(), counts, sum: self.sum }
    }

    /// The values that were recorded after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        counts
            .iter_mut()
            .zip(before.counts)
            .for_each(|(count, before)| *count = count.saturating_sub(before));
        Self { counts, sum: self.sum.saturating_sub(before.sum) }
    }

    /// The upper bound of the bucket of this percentile, in seconds; `None` without values, or beyond the last bound.
    pub(crate) fn percentile(&self, percent: u64) -> Option<f64> {
        percentile(&Self::BUCKET_BOUNDS, &self.counts, percent)
    }

    pub(crate) fn to_json(&self) -> Value {
        summary(&Self::BUCKET_BOUNDS, &self.counts, self.sum)
    }
}

impl LatencyRecorder {
    /// Records a latency `weight` times; a sample represents several measurements.
    #[inline]
    pub fn record(&self, took: Micros, weight: u64) {
        self.record_in(LatencyBuckets::bucket_index(took), took, weight);
    }

    /// Records a latency in the bucket of this index.
    #[inline]
    pub(crate) fn record_in(&self, bucket: usize, took: Micros, weight: u64) {
        if let Some(count) = self.counts.get(bucket) {
            count.add(weight);
            self.sum.add(took.get().saturating_mul(weight));
        }
    }

    /// Returns the current counts.
    pub fn snapshot(&self) -> LatencyBuckets {
        LatencyBuckets { counts: self.counts.each_ref().map(SingleWriterCounter::get), sum: self.sum.get() }
    }
}

/// Count, mean and percentiles, in seconds. A percentile is the upper bound of its bucket; `null` if it is beyond the last
/// bound. `above-range` is the number of values beyond the last bound.
pub(crate) fn summary(ends: &[u64], counts: &[u64], took: u64) -> Value {
    let count: u64 = counts.iter().sum();
    if count == 0 {
        return json!({
            "count": 0, "mean": null, "p50": null, "p90": null, "p95": null, "p99": null, "above-range": 0,
        });
    }
    let within = |percent: u64| percentile(ends, counts, percent);
    json!({
        "count": count,
        "mean": took as f64 / count as f64 / 1e6,
        "p50": within(50),
        "p90": within(90),
        "p95": within(95),
        "p99": within(99),
        "above-range": counts.get(ends.len()).copied().unwrap_or(0),
    })
}

/// The upper bound of the bucket of a percentile, in seconds; `None` without values, or beyond the last bound.
fn percentile(ends: &[u64], counts: &[u64], percent: u64) -> Option<f64> {
    let mut left = (counts.iter().sum::<u64>() * percent).div_ceil(100);
    if left == 0 {
        return None;
    }
    let index = counts.iter().position(|in_range| {
        left = left.saturating_sub(*in_range);
        left == 0
    });
    index.and_then(|index| ends.get(index)).map(|end| *end as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_on_a_bound_is_in_the_lower_bucket() {
        for (micros, index) in [(0, 0), (1, 0), (2, 1), (3, 2), (1_000_000, 18), (60_000_001, 24)] {
            assert_eq!(LatencyBuckets::bucket_index(Micros::new(micros)), index, "{micros}");
        }
    }

    #[test]
    fn percentile_beyond_last_bucket_is_null() {
        assert_eq!(summary(&[1, 10], &[0, 0, 0], 0)["p99"], Value::Null);
        let json = summary(&[1, 10], &[90, 9, 1], 300);
        assert_eq!((&json["p50"], &json["p90"], &json["p99"]), (&json!(1e-6), &json!(1e-6), &json!(1e-5)));
        assert_eq!(
            (&json["count"], &json["mean"], &json["above-range"]),
            (&json!(100), &json!(3e-6), &json!(1))
        );
        let json = summary(&[1, 10], &[90, 8, 2], 300);
        assert_eq!((&json["p99"], &json["above-range"]), (&Value::Null, &json!(2)));
    }

    #[test]
    fn request_buckets_cover_100_us_to_60_s() {
        let recorder = LatencyRecorder::default();
        for micros in [3, 100, 101, 59_999_999, 60_000_000, 90_000_000] {
            recorder.record(Micros::new(micros), 1);
        }
        let MetricValue::Histogram { bounds, counts, sum } = recorder.snapshot().request_histogram() else {
            unreachable!("latencies are histograms")
        };
        assert_eq!((bounds.first(), bounds.last()), (Some(&100), Some(&60_000_000)));
        assert_eq!((counts[0], counts[1], counts.last(), counts.len()), (2, 1, Some(&1), bounds.len() + 1));
        assert_eq!((counts.iter().sum::<u64>(), sum), (6, 210_000_203));
    }
}
