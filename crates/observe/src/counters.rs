//! How often, and how long: counted by each thread for itself, and summed when somebody looks.
//!
//! ```text
//!   worker ──adds──▶ Shard ─┐
//!   worker ──adds──▶ Shard ─┼──sum──▶ Totals
//!   gone   ─────────────────┘
//! ```
//!
//! A shard has one writer, so that an addition is a load and a store: no thread waits for a line of another's cache. There
//! are as many counts as a policy has rules, whatever requests carry.

use super::shard::{RuleCounts, RuleOutcome, Sampled, Shard, Totals, lock};
use crate::ResponseOrigin;
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{Clock, TopKeys};
use tidegate_policy::compile::{DenyReason, PolicyAdmission, PolicyRefusal, PolicyResult, RuleResult};

/// The counts of one policy.
pub struct PolicyCounters {
    id: u64,
    names: Vec<Arc<str>>,
    rule_indexes: HashMap<Arc<str>, usize>,
    clock: Clock,
    shards: Mutex<CounterShards>,
}

struct CounterShards {
    shards: Vec<Arc<Shard>>,
    /// What threads counted that are gone.
    finished: Totals,
    /// By the place of what they are of.
    top: [Vec<TopKeys>; TopBy::ALL.len()],
}

/// Which keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// By denied requests.
    Denied,
    /// By all requests.
    Requested,
    /// Let through by a rule in shadow mode that would have denied them.
    ShadowDenied,
}

impl TopBy {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Requested, Self::ShadowDenied];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Requested => "asked",
            Self::ShadowDenied => "shadow-denied",
        }
    }
}

/// One of so many decisions in memory is timed.
const TIMING_INTERVAL: u64 = 64;
/// One of so many requests is counted in the sketch of keys that ask.
pub const SAMPLE_INTERVAL: u64 = 16;
/// The keys that a sketch tracks.
const TOP_KEYS_CAPACITY: usize = 128;

thread_local! {
    static LOCAL_SHARD: RefCell<Option<Arc<Shard>>> = const { RefCell::new(None) };
}

impl PolicyCounters {
    /// For rules of these names. Keys that were seen most under the policy before are known still.
    pub(crate) fn new<'a>(
        names: impl Iterator<Item = &'a str>,
        clock: Clock,
        before: Option<&Self>,
    ) -> Arc<Self> {
        static LAST_ID: AtomicU64 = AtomicU64::new(0);
        let names: Vec<Arc<str>> = names.map(Into::into).collect();
        let top = |by| -> Vec<TopKeys> {
            let old = |name: &Arc<str>| before.and_then(|before| before.top(before.rule_index(name)?, by));
            names.iter().map(|name| old(name).unwrap_or_else(|| TopKeys::new(TOP_KEYS_CAPACITY))).collect()
        };
        let parts = CounterShards {
            shards: Vec::new(),
            finished: Totals { rules: vec![RuleCounts::default(); names.len()], ..Totals::default() },
            top: TopBy::ALL.map(top),
        };
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Relaxed) + 1,
            rule_indexes: names.iter().enumerate().map(|(place, name)| (name.clone(), place)).collect(),
            names,
            clock,
            shards: Mutex::new(parts),
        })
    }

    /// The names of the rules, in the order of the policy.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The place of a rule in the policy.
    pub fn rule_index(&self, name: &str) -> Option<usize> {
        self.rule_indexes.get(name).copied()
    }

    /// The time by the clock of these counts.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// A decision begins; whether it is one that is timed.
    #[inline]
    pub fn begin_decision(&self) -> Sampled {
        match self.with_shard(|shard| shard.decisions.add(1).is_multiple_of(TIMING_INTERVAL)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// A decision in memory has ended that began then: one of many that are alike, and stands for all of them.
    pub fn end_decision(&self, begun: Micros) {
        let took = self.clock.now().since(begun);
        self.with_shard(|shard| shard.decision_latency.record(took, TIMING_INTERVAL));
    }

    /// A decision has ended that began then and was not made at once: for a store, or since the request had to wait. The
    /// wait is no part of the decision.
    pub fn end_async_decision(&self, begun: Micros, waited: Micros) {
        let took = self.clock.now().since(begun).since(waited);
        self.with_shard(|shard| {
            shard.decision_latency.record(took, 1);
            if waited > Micros::ZERO {
                shard.wait_latency.record(waited, 1);
            }
        });
    }

    /// A request that these rules let through has been answered; it came in then.
    pub fn record_latency(&self, rules: &[usize], received_at: Micros) {
        if rules.is_empty() {
            return;
        }
        let took = self.clock.now().since(received_at);
        self.with_shard(|shard| {
            for rule in rules.iter().filter_map(|place| shard.rules.get(*place)) {
                rule.latency.record(took, 1);
            }
        });
    }

    /// A request is answered with this status.
    #[inline]
    pub fn record_response(&self, status: u16, by: ResponseOrigin) {
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        self.with_shard(|shard| shard.responses[by as usize][class].add(1));
    }

    /// A policy has said what becomes of a request.
    #[inline]
    pub(crate) fn record_result(&self, result: &PolicyResult) {
        match result {
            PolicyResult::Admitted(admission) => self.record_admitted(admission),
            PolicyResult::Refused(refusal) => self.record_refused(refusal),
        }
    }

    #[inline]
    fn record_admitted(&self, admission: &PolicyAdmission) {
        self.with_shard(|shard| {
            shard.requests[0].add(1);
            let mut marks = [0, 0];
            for decision in admission.decisions() {
                let outcome = match decision.result {
                    RuleResult::Admitted => RuleOutcome::Admitted,
                    RuleResult::Delayed(_) => {
                        marks[0] = 1;
                        RuleOutcome::Delayed
                    }
                    RuleResult::Denied(_) => {
                        marks[1] = 1;
                        RuleOutcome::ShadowDenied
                    }
                };
                shard.record(decision.rule, outcome, decision.decision);
            }
            if marks != [0, 0] {
                shard.flagged.iter().zip(marks).for_each(|(count, mark)| _ = count.add(mark));
            }
        });
    }

    #[cold]
    fn record_refused(&self, refusal: &PolicyRefusal) {
        let outcome = match refusal.reason {
            DenyReason::Limited => RuleOutcome::Limited,
            DenyReason::NoKey => RuleOutcome::NoKey,
            DenyReason::Denied => RuleOutcome::Listed,
            DenyReason::Banned => RuleOutcome::Banned,
            DenyReason::Guarded => RuleOutcome::Guarded,
        };
        let decision = refusal.decision.as_ref().map(|(decision, _)| decision);
        self.with_shard(|shard| {
            shard.requests[1].add(1);
            shard.record(refusal.index, outcome, decision);
        });
    }

    /// A request was turned away before any rule was asked.
    pub(crate) fn record_banned(&self) {
        self.with_shard(|shard| shard.requests[1].add(1));
    }

    /// A program asked the rule at this place of the policy.
    pub fn record_decision(&self, place: usize, outcome: RuleOutcome, decision: Option<&Decision>) {
        self.with_shard(|shard| shard.record(place, outcome, decision));
    }

    /// Whether this request is one of those whose keys are counted.
    pub(crate) fn sample_key(&self) -> Sampled {
        match self.with_shard(|shard| shard.decisions.get().is_multiple_of(SAMPLE_INTERVAL)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// A key was denied, or would have been, or asked for by one who stands for so many.
    pub(crate) fn count_key(
        &self,
        place: usize,
        by: TopBy,
        hash: u64,
        weight: u64,
        name: impl FnOnce() -> String,
    ) {
        self.with_shard(|shard| {
            let mut top = lock(&shard.top);
            let sketches = &mut top.sketches[by as usize];
            if sketches.len() < shard.rules.len() {
                sketches.resize_with(shard.rules.len(), || TopKeys::new(TOP_KEYS_CAPACITY));
            }
            if let Some(sketch) = sketches.get_mut(place) {
                sketch.add(hash, weight, name);
            }
        });
    }

    /// Whether this thread may keep one more denial in this second.
    pub(crate) fn sample_denial(&self, now: Micros) -> Sampled {
        let second = now.get() / 1_000_000;
        self.with_shard(|shard| lock(&shard.top).sample_denial(second)).unwrap_or(Sampled::No)
    }

    /// The keys of a rule that were seen most, by all threads together; `None` if there is no such rule.
    pub fn top(&self, place: usize, by: TopBy) -> Option<TopKeys> {
        let mut parts = self.lock_shards();
        parts.merge_finished();
        let mut sum = parts.top[by as usize].get(place)?.clone();
        for shard in &parts.shards {
            let top = lock(&shard.top);
            if let Some(sketch) = top.sketches[by as usize].get(place) {
                sum.merge(sketch);
            }
        }
        Some(sum)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut parts = self.lock_shards();
        parts.merge_finished();
        let mut sum = parts.finished.clone();
        parts.shards.iter().for_each(|shard| sum.add(&shard.totals()));
        sum
    }

    /// Does something with the counts of this thread.
    #[inline]
    fn with_shard<R>(&self, work: impl FnOnce(&Shard) -> R) -> Option<R> {
        // While a thread ends there is nothing left to count in.
        LOCAL_SHARD
            .try_with(|here| {
                if let Some(shard) = here.borrow().as_deref().filter(|shard| shard.counters_id == self.id) {
                    return work(shard);
                }
                work(&self.register_thread(here))
            })
            .ok()
    }

    #[cold]
    fn register_thread(&self, here: &RefCell<Option<Arc<Shard>>>) -> Arc<Shard> {
        let shard = Arc::new(Shard::new(self.id, self.names.len()));
        let before = here.replace(Some(shard.clone()));
        drop(before);
        let mut parts = self.lock_shards();
        parts.merge_finished();
        parts.shards.push(shard.clone());
        shard
    }

    fn lock_shards(&self) -> MutexGuard<'_, CounterShards> {
        lock(&self.shards)
    }
}

impl CounterShards {
    /// Adds up what threads counted that are gone, or count elsewhere now.
    fn merge_finished(&mut self) {
        let mut place = 0;
        while let Some(shard) = self.shards.get_mut(place) {
            // Whoever had it has written for the last time.
            if Arc::get_mut(shard).is_none() {
                place += 1;
                continue;
            }
            let shard = self.shards.swap_remove(place);
            self.finished.add(&shard.totals());
            let top = lock(&shard.top);
            for (sums, parts) in self.top.iter_mut().zip(&top.sketches) {
                sums.iter_mut().zip(parts).for_each(|(sum, part)| sum.merge(part));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn new_counters(names: &[&str], before: Option<&PolicyCounters>) -> Arc<PolicyCounters> {
        PolicyCounters::new(names.iter().copied(), Clock::manual().0, before)
    }

    #[test]
    fn finished_threads_keep_their_counts() {
        let tally = new_counters(&["a", "b"], None);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let tally = tally.clone();
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        tally.record_decision(1, RuleOutcome::Limited, None);
                    }
                    tally.record_decision(9, RuleOutcome::Limited, None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        tally.record_decision(0, RuleOutcome::Admitted, None);
        let totals = tally.totals();
        assert_eq!(totals.rules[1].outcomes[RuleOutcome::Limited as usize], 4_000);
        assert_eq!(totals.rules[0].outcomes[RuleOutcome::Admitted as usize], 1);
        assert_eq!(tally.lock_shards().shards.len(), 1, "those of threads that are gone are added up");
        assert_eq!(totals, tally.totals());
    }

    #[test]
    fn thread_counts_for_two_policies() {
        let (first, second) = (new_counters(&["a"], None), new_counters(&["a"], None));
        for _ in 0..10 {
            first.record_decision(0, RuleOutcome::Admitted, None);
            second.record_decision(0, RuleOutcome::Admitted, None);
        }
        assert_eq!((first.totals().rules[0].outcomes[0], second.totals().rules[0].outcomes[0]), (10, 10));
        assert!(first.lock_shards().shards.is_empty() && second.lock_shards().shards.len() == 1);
    }

    #[test]
    fn top_keys_survive_reload() {
        let first = new_counters(&["a", "b"], None);
        first.count_key(1, TopBy::Denied, 7, 3, || "seven".to_owned());
        let second = new_counters(&["b"], Some(&first));
        second.count_key(0, TopBy::Denied, 7, 1, || "seven".to_owned());
        let top = second.top(0, TopBy::Denied).unwrap().top();
        assert_eq!((top.len(), top[0].count, top[0].name.as_str()), (1, 4, "seven"));
        assert!(second.top(1, TopBy::Denied).is_none());
    }

    #[test]
    fn recorded_denials_are_limited_per_second() {
        let tally = new_counters(&[], None);
        let kept = |second| {
            (0..1_000).filter(|_| tally.sample_denial(Micros::from_secs(second)) == Sampled::Yes).count()
        };
        assert_eq!((kept(1), kept(1), kept(2)), (256, 0, 256));
    }
}
