//! Two policies, asked about the same requests.

use crate::{
    log::{Line, Lines},
    run::{Failure, Replay, Tally, Verdict},
};
use tidegate_limiter::{TopKey, TopKeys};
use tidegate_policy::compile::{PolicyGate, Prefetch};

/// The policy that another one is compared with, and what differs so far.
#[derive(Debug)]
pub struct Comparison {
    replay: Replay,
    verdicts: Vec<Verdict>,
    counts: Difference,
    newly: TopKeys,
    no_longer: TopKeys,
}

/// Where a policy differs from the one that it is compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// Requests that only the policy denies.
    pub newly_denied: u64,
    /// Requests that only the other one denies.
    pub no_longer_denied: u64,
    /// Requests that both deny.
    pub denied_by_both: u64,
    /// Requests that only the policy has wait.
    pub newly_delayed: u64,
    /// Requests that only the other one has wait.
    pub no_longer_delayed: u64,
    /// Keys of which it denies more or less, the most changed first.
    pub keys: Vec<KeyChange>,
}

/// What differs for one key of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The rule that denies it, and the key.
    pub key: String,
    /// Requests that only the policy denies.
    pub newly_denied: u64,
    /// Requests that only the other one denies.
    pub no_longer_denied: u64,
    /// By how much these may be too small.
    pub doubt: u64,
}

/// Keys that are tracked of each kind, that are compared, and that are reported.
const TRACKED: usize = 4_000;
const COMPARED: usize = 2_000;
const TOLD: usize = 50;

impl Comparison {
    /// With this policy.
    pub fn with(replay: Replay) -> Self {
        let keys = || TopKeys::new(TRACKED);
        let counts = Difference::default();
        Self { replay, verdicts: Vec::new(), counts, newly: keys(), no_longer: keys() }
    }

    /// Whether there was no room for a key.
    pub(crate) fn has_overflowed(&self) -> bool {
        self.replay.has_overflowed()
    }

    /// The policy, for whoever finds out ahead what it has to know of requests.
    pub(crate) fn gate(&self) -> &PolicyGate {
        self.replay.gate()
    }

    /// What has to be told of what it counted.
    pub fn notes(&self) -> Vec<String> {
        self.replay.notes()
    }

    /// Asks it too, and notes whether it says the same to each as the policy has.
    pub fn ask(
        &mut self,
        lines: Lines<'_>,
        known: Option<(&Prefetch, usize)>,
        verdicts: &[Verdict],
        policy: &Replay,
    ) {
        let mut others = std::mem::take(&mut self.verdicts);
        self.replay.ask(lines, known, &mut others);
        for (((line, _), verdict), other) in lines.iter().zip(verdicts).zip(&others) {
            self.note(&line, *verdict, *other, policy);
        }
        self.verdicts = others;
    }

    fn note(&mut self, line: &Line<'_>, verdict: Verdict, other: Verdict, policy: &Replay) {
        let counts = &mut self.counts;
        match (verdict, other) {
            (Verdict::Denied(_), Verdict::Denied(_)) => counts.denied_by_both += 1,
            (Verdict::Denied(rule), _) => {
                counts.newly_denied += 1;
                add(&mut self.newly, policy, rule, line);
            }
            (_, Verdict::Denied(rule)) => {
                counts.no_longer_denied += 1;
                add(&mut self.no_longer, &self.replay, rule, line);
            }
            (Verdict::Delayed, Verdict::Admitted) => counts.newly_delayed += 1,
            (Verdict::Admitted, Verdict::Delayed) => counts.no_longer_delayed += 1,
            (Verdict::Admitted, Verdict::Admitted) | (Verdict::Delayed, Verdict::Delayed) => {}
        }
    }

    /// What the other policy did, and all that differs.
    pub fn finish(self) -> Result<(Tally, Difference), Failure> {
        let Self { replay, mut counts, newly, no_longer, .. } = self;
        let change = |counted: TopKey, is_new: bool| KeyChange {
            newly_denied: if is_new { counted.min_count() } else { 0 },
            no_longer_denied: if is_new { 0 } else { counted.min_count() },
            doubt: counted.error,
            key: counted.name,
        };
        let newly = newly.top().into_iter().take(COMPARED);
        let mut keys: Vec<KeyChange> = newly.map(|key| change(key, true)).collect();
        for counted in no_longer.top().into_iter().take(COMPARED) {
            match keys.iter_mut().find(|known| known.key == counted.name) {
                Some(known) => {
                    known.no_longer_denied = counted.min_count();
                    known.doubt = known.doubt.max(counted.error);
                }
                None => keys.push(change(counted, false)),
            }
        }
        keys.sort_by_key(|key| std::cmp::Reverse(key.newly_denied.max(key.no_longer_denied)));
        keys.truncate(TOLD);
        counts.keys = keys;
        Ok((replay.finish()?, counts))
    }
}

impl Difference {
    /// Whether both policies do the same to every request.
    pub fn is_none(&self) -> bool {
        self.newly_denied + self.no_longer_denied + self.newly_delayed + self.no_longer_delayed == 0
    }
}

fn add(keys: &mut TopKeys, replay: &Replay, rule: usize, line: &Line<'_>) {
    let (hash, key) = replay.key_of(rule, line);
    let name = replay.tally().rules.get(rule).map_or("", |rule| &rule.name);
    let hash = hash ^ (rule as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    keys.add(hash, 1, || format!("{name}: {key}"));
}
