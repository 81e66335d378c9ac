//! The outcome of a load.

use super::{latency::LatencyHistogram, request::key_name};
use std::collections::BTreeMap;
use tidegate_core::Micros;

/// The outcome of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct BenchOutcome {
    /// Requests that were due.
    pub(crate) due: u64,
    /// Requests that were sent, including failed attempts.
    pub(crate) sent: u64,
    /// The time from the start to the last response, and at least to the end of the schedule.
    pub(crate) elapsed: Micros,
    /// Responses by status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without a response, by error.
    pub(crate) failures: BTreeMap<String, u64>,
    /// From the due time to the end of the response.
    pub(crate) latency: LatencyHistogram,
    /// From sending the request to the end of the response.
    pub(crate) service: LatencyHistogram,
    /// The time in which the requests were due.
    pub(crate) schedule_length: Micros,
    /// Requests that were sent late.
    pub(crate) late: u64,
    pub(crate) max_lateness: Micros,
    /// Requests that were dropped since the queue was full.
    pub(crate) unsent: u64,
    /// Requests that were dropped since the run was interrupted.
    pub(crate) abandoned: u64,
    /// The maximum number of requests in flight.
    pub(crate) max_in_flight: usize,
    /// Responses that are not denials.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Denials by the rule in the response.
    pub(crate) denied_by_rule: BTreeMap<String, u64>,
    /// The expected decisions on the same requests.
    pub(crate) expected: Option<ExpectedCounts>,
}

/// The expected counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedCounts {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// The rules, with their expected denials.
    pub(crate) rules: Vec<(String, u64)>,
    /// The actual and the expected number of admitted requests of each key.
    pub(crate) keys: Vec<(u64, u64)>,
    /// The limitations of the comparison.
    pub(crate) notes: Vec<String>,
}

/// A key whose number of admitted requests differs from the expected one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyDifference {
    pub(crate) key: String,
    pub(crate) admitted: u64,
    pub(crate) expected: u64,
}

/// The maximum number of distinct errors and rules in the report.
const MAX_NAMES: usize = 20;
/// The delay above which a request counts as late.
const LATE_THRESHOLD: Micros = Micros::from_millis(1);
/// The maximum number of keys in the report.
const MAX_REPORTED_KEYS: usize = 10;

impl BenchOutcome {
    /// Records a request that was sent with this delay.
    pub(super) fn record_sent(&mut self, late_by: Micros) {
        self.sent += 1;
        if late_by > LATE_THRESHOLD {
            self.late += 1;
        }
        self.max_lateness = self.max_lateness.max(late_by);
    }

    /// Records a request without a response.
    pub(super) fn record_failure(&mut self, reason: String) {
        count_name(&mut self.failures, reason);
    }

    /// Records a denial, with the rule in the response.
    pub(super) fn record_denial(&mut self, rule: Option<String>) {
        self.denied += 1;
        if let Some(rule) = rule {
            count_name(&mut self.denied_by_rule, rule);
        }
    }

    /// The sum of the absolute differences of all keys.
    pub(crate) fn difference(&self) -> Option<u64> {
        let keys = &self.expected.as_ref()?.keys;
        Some(keys.iter().map(|(admitted, expected)| admitted.abs_diff(*expected)).sum())
    }

    /// The keys with the largest differences, and the number of keys that differ.
    pub(crate) fn differing_keys(&self) -> (Vec<KeyDifference>, usize) {
        let keys = self.expected.iter().flat_map(|expected| expected.keys.iter().enumerate());
        let mut found: Vec<_> = keys.filter(|(_, (admitted, expected))| admitted != expected).collect();
        found.sort_by_key(|(index, (admitted, expected))| {
            (std::cmp::Reverse(admitted.abs_diff(*expected)), *index)
        });
        let count = found.len();
        let reported =
            found.into_iter().take(MAX_REPORTED_KEYS).map(|(index, (admitted, expected))| KeyDifference {
                key: key_name(u32::try_from(index).unwrap_or(u32::MAX)),
                admitted: *admitted,
                expected: *expected,
            });
        (reported.collect(), count)
    }
}

/// Counts a name, or `others` if there are too many names.
fn count_name(counts: &mut BTreeMap<String, u64>, name: String) {
    let name =
        if counts.len() >= MAX_NAMES && !counts.contains_key(&name) { "others".to_owned() } else { name };
    *counts.entry(name).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_differences_do_not_cancel_out() {
        let keys = vec![(5, 5), (7, 5), (3, 5)];
        let outcome = BenchOutcome {
            expected: Some(ExpectedCounts { keys, ..ExpectedCounts::default() }),
            ..BenchOutcome::default()
        };
        assert_eq!(outcome.difference(), Some(4));
        let (keys, count) = outcome.differing_keys();
        assert_eq!(count, 2);
        assert_eq!(keys[0], KeyDifference { key: "key-1".to_owned(), admitted: 7, expected: 5 });
    }

    #[test]
    fn failure_reasons_are_bounded() {
        let mut outcome = BenchOutcome::default();
        (0..100).for_each(|number| outcome.record_failure(number.to_string()));
        assert_eq!(outcome.failures.len(), MAX_NAMES + 1);
        assert_eq!(outcome.failures["others"], 80);
    }
}
