//! What became of a load.

use super::{latency::LatencyHistogram, request::key_name};
use std::collections::BTreeMap;
use tidegate_core::Micros;

/// What became of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct BenchOutcome {
    /// Requests that were due.
    pub(crate) due: u64,
    /// Requests that were sent, or tried.
    pub(crate) sent: u64,
    /// How long it took from the first moment to the last answer, and to the end of the schedule at least.
    pub(crate) elapsed: Micros,
    /// Answers by their status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without an answer, by why.
    pub(crate) failures: BTreeMap<String, u64>,
    /// From when each was due to the end of its answer.
    pub(crate) latency: LatencyHistogram,
    /// Sent later than they were due by more than a moment, and the latest of them.
    pub(crate) late: u64,
    pub(crate) max_lateness: Micros,
    /// Not sent at all, since too many were waiting.
    pub(crate) unsent: u64,
    /// Not sent at all, since a person has ended it.
    pub(crate) abandoned: u64,
    /// Of all connections, the most that had a request at once.
    pub(crate) max_in_flight: usize,
    /// Answers that were no denials, and those that were.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Denials by the rule that they told.
    pub(crate) denied_by_rule: BTreeMap<String, u64>,
    /// What a policy says of the same requests.
    pub(crate) expected: Option<ExpectedCounts>,
}

/// What should have become of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExpectedCounts {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// The rules, with what they should have denied.
    pub(crate) rules: Vec<(String, u64)>,
    /// For each key what was admitted, and what should have been.
    pub(crate) keys: Vec<(u64, u64)>,
    /// What the policy cannot know.
    pub(crate) notes: Vec<String>,
}

/// A key with another number of admitted requests than it should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyDifference {
    pub(crate) key: String,
    pub(crate) admitted: u64,
    pub(crate) expected: u64,
}

/// How many reasons of failures are told apart, and rules that were told.
const MAX_NAMES: usize = 20;
/// How much later than due is late.
const LATE_THRESHOLD: Micros = Micros::from_millis(1);
/// How many keys are told.
const MAX_REPORTED_KEYS: usize = 10;

impl BenchOutcome {
    /// One was sent so much later than it was due.
    pub(super) fn record_sent(&mut self, late_by: Micros) {
        self.sent += 1;
        if late_by > LATE_THRESHOLD {
            self.late += 1;
        }
        self.max_lateness = self.max_lateness.max(late_by);
    }

    /// There was no answer.
    pub(super) fn record_failure(&mut self, reason: String) {
        count_name(&mut self.failures, reason);
    }

    /// A denial, and by which rule it said.
    pub(super) fn record_denial(&mut self, rule: Option<String>) {
        self.denied += 1;
        if let Some(rule) = rule {
            count_name(&mut self.denied_by_rule, rule);
        }
    }

    /// By how many requests keys were admitted more or less than they should have been.
    pub(crate) fn difference(&self) -> Option<u64> {
        let keys = &self.expected.as_ref()?.keys;
        Some(keys.iter().map(|(admitted, expected)| admitted.abs_diff(*expected)).sum())
    }

    /// The keys that differ most, and how many differ.
    pub(crate) fn differing_keys(&self) -> (Vec<KeyDifference>, usize) {
        let keys = self.expected.iter().flat_map(|expected| expected.keys.iter().enumerate());
        let mut found: Vec<_> = keys.filter(|(_, (admitted, expected))| admitted != expected).collect();
        found.sort_by_key(|(place, (admitted, expected))| {
            (std::cmp::Reverse(admitted.abs_diff(*expected)), *place)
        });
        let count = found.len();
        let reported =
            found.into_iter().take(MAX_REPORTED_KEYS).map(|(place, (admitted, expected))| KeyDifference {
                key: key_name(u32::try_from(place).unwrap_or(u32::MAX)),
                admitted: *admitted,
                expected: *expected,
            });
        (reported.collect(), count)
    }
}

/// Counts one more, unless there are too many names.
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
