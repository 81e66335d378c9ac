//! Compares two policies on the same requests.

use crate::{
    log::{LoggedRequest, LoggedRequests},
    run::{PolicyStats, Replay, ReplayError, ReplayVerdict},
};
use tidegate_limiter::{TopKey, TopKeys};
use tidegate_policy::compile::{PolicyGate, Prefetch};

/// The baseline policy of a comparison, and the differences so far.
#[derive(Debug)]
pub struct Comparison {
    replay: Replay,
    verdicts: Vec<ReplayVerdict>,
    counts: PolicyDifference,
    newly_denied_keys: TopKeys,
    no_longer_denied_keys: TopKeys,
}

/// The differences between a policy and its baseline.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicyDifference {
    /// Requests that only the policy denies.
    pub newly_denied: u64,
    /// Requests that only the baseline denies.
    pub no_longer_denied: u64,
    /// Requests that both deny.
    pub denied_by_both: u64,
    /// Requests that only the policy delays.
    pub newly_delayed: u64,
    /// Requests that only the baseline delays.
    pub no_longer_delayed: u64,
    /// Keys with different numbers of denials, the largest change first.
    pub keys: Vec<KeyChange>,
}

/// The difference for one key of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The rule that denies the requests, and the key.
    pub key: String,
    /// Requests that only the policy denies.
    pub newly_denied: u64,
    /// Requests that only the baseline denies.
    pub no_longer_denied: u64,
    /// The maximum number by which these counts may be too small.
    pub error: u64,
}

/// The numbers of keys that are tracked per kind, compared, and reported.
const TRACKED_KEYS: usize = 4_000;
const COMPARED_KEYS: usize = 2_000;
const REPORTED_KEYS: usize = 50;

impl Comparison {
    /// Creates a comparison with this baseline.
    pub fn new(replay: Replay) -> Self {
        let keys = || TopKeys::new(TRACKED_KEYS);
        let counts = PolicyDifference::default();
        Self {
            replay,
            verdicts: Vec::new(),
            counts,
            newly_denied_keys: keys(),
            no_longer_denied_keys: keys(),
        }
    }

    /// Whether the key table of a rule has overflowed.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.replay.has_overflowed()
    }

    /// The compiled policy, for preparing requests ahead of time.
    pub(crate) fn gate(&self) -> &PolicyGate {
        self.replay.gate()
    }

    /// Returns the notes of the replay of the baseline.
    pub fn notes(&self) -> Vec<String> {
        self.replay.notes()
    }

    /// Evaluates the baseline for the requests, and records where its verdicts differ from those of the policy.
    pub fn evaluate(
        &mut self,
        lines: LoggedRequests<'_>,
        known: Option<(&Prefetch, usize)>,
        verdicts: &[ReplayVerdict],
        policy: &Replay,
    ) {
        let mut others = std::mem::take(&mut self.verdicts);
        self.replay.evaluate(lines, known, &mut others);
        for (((line, _), verdict), other) in lines.iter().zip(verdicts).zip(&others) {
            self.record(&line, *verdict, *other, policy);
        }
        self.verdicts = others;
    }

    fn record(
        &mut self,
        line: &LoggedRequest<'_>,
        verdict: ReplayVerdict,
        other: ReplayVerdict,
        policy: &Replay,
    ) {
        let counts = &mut self.counts;
        match (verdict, other) {
            (ReplayVerdict::DeniedBy(_), ReplayVerdict::DeniedBy(_)) => counts.denied_by_both += 1,
            (ReplayVerdict::DeniedBy(rule), _) => {
                counts.newly_denied += 1;
                add_key(&mut self.newly_denied_keys, policy, rule, line);
            }
            (_, ReplayVerdict::DeniedBy(rule)) => {
                counts.no_longer_denied += 1;
                add_key(&mut self.no_longer_denied_keys, &self.replay, rule, line);
            }
            (ReplayVerdict::Delayed, ReplayVerdict::Admitted) => counts.newly_delayed += 1,
            (ReplayVerdict::Admitted, ReplayVerdict::Delayed) => counts.no_longer_delayed += 1,
            (ReplayVerdict::Admitted, ReplayVerdict::Admitted)
            | (ReplayVerdict::Delayed, ReplayVerdict::Delayed) => {}
        }
    }

    /// Returns the statistics of the baseline and all differences.
    ///
    /// # Errors
    ///
    /// Returns [`ReplayError::NoKey`] if no request has the key of a rule.
    pub fn finish(self) -> Result<(PolicyStats, PolicyDifference), ReplayError> {
        let Self { replay, mut counts, newly_denied_keys: newly, no_longer_denied_keys: no_longer, .. } =
            self;
        let change = |top_key: TopKey, is_new: bool| KeyChange {
            newly_denied: if is_new { top_key.min_count() } else { 0 },
            no_longer_denied: if is_new { 0 } else { top_key.min_count() },
            error: top_key.error,
            key: top_key.name,
        };
        let newly = newly.top().into_iter().take(COMPARED_KEYS);
        let mut keys: Vec<KeyChange> = newly.map(|key| change(key, true)).collect();
        for top_key in no_longer.top().into_iter().take(COMPARED_KEYS) {
            match keys.iter_mut().find(|known| known.key == top_key.name) {
                Some(known) => {
                    known.no_longer_denied = top_key.min_count();
                    known.error = known.error.max(top_key.error);
                }
                None => keys.push(change(top_key, false)),
            }
        }
        keys.sort_by_key(|key| std::cmp::Reverse(key.newly_denied.max(key.no_longer_denied)));
        keys.truncate(REPORTED_KEYS);
        counts.keys = keys;
        Ok((replay.finish()?, counts))
    }
}

impl PolicyDifference {
    /// Whether both policies make the same decision for every request.
    pub fn is_empty(&self) -> bool {
        self.newly_denied + self.no_longer_denied + self.newly_delayed + self.no_longer_delayed == 0
    }
}

fn add_key(keys: &mut TopKeys, replay: &Replay, rule: usize, line: &LoggedRequest<'_>) {
    let (hash, key) = replay.key_of(rule, line);
    let name = replay.stats().rules.get(rule).map_or("", |rule| &rule.name);
    let hash = hash ^ (rule as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    keys.add(hash, 1, || format!("{name}: {key}"));
}
