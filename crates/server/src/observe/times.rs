//! How long something took, in ranges.

use serde_json::{Value, json};
use tidegate_core::Micros;

/// How long decisions took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) counts: [u64; Self::COUNTS],
    /// All together, in microseconds.
    pub(crate) took: u64,
}

impl Times {
    /// The ends of all ranges but the last, in microseconds.
    pub(crate) const ENDS: [u64; 15] =
        [1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 100_000, 1_000_000];
    pub(crate) const COUNTS: usize = Self::ENDS.len() + 1;

    /// The range of this time.
    pub(crate) fn place(took: Micros) -> usize {
        Self::ENDS.partition_point(|end| *end < took.get())
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.counts.iter_mut().zip(other.counts).for_each(|(sum, count)| *sum += count);
        self.took += other.took;
    }

    pub(crate) fn json(&self) -> Value {
        summary(&Self::ENDS, &self.counts, self.took)
    }
}

/// How many there were, how long they took on average, and how long most of them did; in seconds. What is told of a part of
/// them is the end of the range that it is in.
pub(crate) fn summary(ends: &[u64], counts: &[u64], took: u64) -> Value {
    let count: u64 = counts.iter().sum();
    if count == 0 {
        return json!({ "count": 0, "mean": null, "p50": null, "p90": null, "p99": null });
    }
    let within = |percent: u64| {
        let mut left = (count * percent).div_ceil(100);
        let place = counts.iter().position(|in_range| {
            left = left.saturating_sub(*in_range);
            left == 0
        });
        let end = place.and_then(|place| ends.get(place)).or(ends.last()).copied().unwrap_or(0);
        end as f64 / 1e6
    };
    json!({
        "count": count,
        "mean": took as f64 / count as f64 / 1e6,
        "p50": within(50),
        "p90": within(90),
        "p99": within(99),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_range_that_ends_with_it() {
        for (micros, place) in [(0, 0), (1, 0), (2, 1), (3, 2), (1_000_000, 14), (1_000_001, 15)] {
            assert_eq!(Times::place(Micros::new(micros)), place, "{micros}");
        }
    }

    #[test]
    fn most_of_them_are_told_by_the_end_of_their_range() {
        assert_eq!(summary(&[1, 10], &[0, 0, 0], 0)["p99"], Value::Null);
        let told = summary(&[1, 10], &[90, 9, 1], 300);
        assert_eq!((&told["p50"], &told["p90"], &told["p99"]), (&json!(1e-6), &json!(1e-6), &json!(1e-5)));
        assert_eq!((&told["count"], &told["mean"]), (&json!(100), &json!(3e-6)));
    }
}
