//! What became of a load.

use super::{latency::Latency, request::key_name};
use std::collections::BTreeMap;
use tidegate_core::Micros;

/// What became of a load.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// Requests that were due.
    pub(crate) due: u64,
    /// Requests that were sent, or tried.
    pub(crate) sent: u64,
    /// How long it took from the first moment to the last answer, and to the end of the schedule at least.
    pub(crate) took: Micros,
    /// Answers by their status.
    pub(crate) statuses: BTreeMap<u16, u64>,
    /// Requests without an answer, by why.
    pub(crate) failures: BTreeMap<String, u64>,
    /// From when each was due to the end of its answer.
    pub(crate) latency: Latency,
    /// Sent later than they were due by more than a moment, and the latest of them.
    pub(crate) late: u64,
    pub(crate) latest: Micros,
    /// Not sent at all, since too many were waiting.
    pub(crate) unsent: u64,
    /// Not sent at all, since a person has ended it.
    pub(crate) given_up: u64,
    /// Of all connections, the most that had a request at once.
    pub(crate) busiest: usize,
    /// Answers that were no denials, and those that were.
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    /// Denials by the rule that they told.
    pub(crate) told: BTreeMap<String, u64>,
    /// What a policy says of the same requests.
    pub(crate) expected: Option<Expected>,
}

/// What should have become of it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Expected {
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
const MOST_REASONS: usize = 20;
/// How much later than due is late.
const MOMENT: Micros = Micros::from_millis(1);
/// How many keys are told.
const MOST_KEYS: usize = 10;

impl Outcome {
    /// One was sent so much later than it was due.
    pub(super) fn sent(&mut self, late_by: Micros) {
        self.sent += 1;
        if late_by > MOMENT {
            self.late += 1;
        }
        self.latest = self.latest.max(late_by);
    }

    /// There was no answer.
    pub(super) fn failed(&mut self, why: String) {
        add(&mut self.failures, why);
    }

    /// A denial, and by which rule it said.
    pub(super) fn denied(&mut self, rule: Option<String>) {
        self.denied += 1;
        if let Some(rule) = rule {
            add(&mut self.told, rule);
        }
    }

    /// By how many requests keys were admitted more or less than they should have been.
    pub(crate) fn difference(&self) -> Option<u64> {
        let keys = &self.expected.as_ref()?.keys;
        Some(keys.iter().map(|(admitted, expected)| admitted.abs_diff(*expected)).sum())
    }

    /// The keys that differ most, and how many differ.
    pub(crate) fn differing(&self) -> (Vec<KeyDifference>, usize) {
        let keys = self.expected.iter().flat_map(|expected| expected.keys.iter().enumerate());
        let mut found: Vec<_> = keys.filter(|(_, (admitted, expected))| admitted != expected).collect();
        found.sort_by_key(|(place, (admitted, expected))| {
            (std::cmp::Reverse(admitted.abs_diff(*expected)), *place)
        });
        let count = found.len();
        let told = found.into_iter().take(MOST_KEYS).map(|(place, (admitted, expected))| KeyDifference {
            key: key_name(u32::try_from(place).unwrap_or(u32::MAX)),
            admitted: *admitted,
            expected: *expected,
        });
        (told.collect(), count)
    }
}

/// Counts one more, unless there are too many names.
fn add(counts: &mut BTreeMap<String, u64>, name: String) {
    let name =
        if counts.len() >= MOST_REASONS && !counts.contains_key(&name) { "others".to_owned() } else { name };
    *counts.entry(name).or_default() += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_do_not_cancel_out() {
        let keys = vec![(5, 5), (7, 5), (3, 5)];
        let outcome =
            Outcome { expected: Some(Expected { keys, ..Expected::default() }), ..Outcome::default() };
        assert_eq!(outcome.difference(), Some(4));
        let (keys, count) = outcome.differing();
        assert_eq!(count, 2);
        assert_eq!(keys[0], KeyDifference { key: "key-1".to_owned(), admitted: 7, expected: 5 });
    }

    #[test]
    fn reasons_do_not_grow_without_end() {
        let mut outcome = Outcome::default();
        (0..100).for_each(|number| outcome.failed(number.to_string()));
        assert_eq!(outcome.failures.len(), MOST_REASONS + 1);
        assert_eq!(outcome.failures["others"], 80);
    }
}
