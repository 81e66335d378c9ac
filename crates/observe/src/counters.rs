//! Counters and latencies of one policy. Each thread has its own; a reader sums them.
//!
//! ```text
//!   worker ──adds──▶ Shard ─┐
//!   worker ──adds──▶ Shard ─┼──sum──▶ Totals
//!   ended  ─────────────────┘
//! ```
//!
//! A shard has one writer, so an addition is a load and a store, and threads do not share cache lines. The number of
//! counters depends on the rules of the policy, not on the requests.

use super::{
    latency::LatencyBuckets,
    shard::{RequestBodyOutcome, RuleCounts, RuleOutcome, Sampled, SettlementCount, Shard, Totals, lock},
};
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
use tidegate_policy::compile::{PolicyAdmission, PolicyRejection, PolicyResult, RejectReason, RuleResult};
use tidegate_rule::SettledCost;

/// The counters of one policy.
pub struct PolicyCounters {
    id: u64,
    names: Vec<Arc<str>>,
    rule_indexes: HashMap<Arc<str>, usize>,
    clock: Clock,
    shards: Mutex<CounterShards>,
}

struct CounterShards {
    shards: Vec<Arc<Shard>>,
    /// The sums of threads that have ended.
    finished: Totals,
    /// By the index of [`TopBy`].
    top: [Vec<TopKeys>; TopBy::ALL.len()],
}

/// The count by which keys are ranked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// By denied requests.
    Denied,
    /// By all requests.
    Requests,
    /// By requests that a rule in shadow mode would have denied.
    ShadowDenied,
}

impl TopBy {
    /// All values, in order.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Requests, Self::ShadowDenied];

    /// The name in the admin API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Requests => "requests",
            Self::ShadowDenied => "shadow-denied",
        }
    }
}

/// How a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// With its last byte.
    Complete,
    /// The client or the server disconnected.
    Aborted,
}

/// One of this many decisions in memory is timed.
const TIMING_INTERVAL: u64 = 64;
/// One of this many requests is counted in the sketch of frequent keys.
pub const SAMPLE_INTERVAL: u64 = 16;
/// The keys that a sketch tracks.
const TOP_KEYS_CAPACITY: usize = 128;

thread_local! {
    static LOCAL_SHARD: RefCell<Option<Arc<Shard>>> = const { RefCell::new(None) };
}

impl PolicyCounters {
    /// Counters for rules of these names. The most frequent keys of the previous policy are carried over.
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
        let shards = CounterShards {
            shards: Vec::new(),
            finished: Totals { rules: vec![RuleCounts::default(); names.len()], ..Totals::default() },
            top: TopBy::ALL.map(top),
        };
        Arc::new(Self {
            id: LAST_ID.fetch_add(1, Relaxed) + 1,
            rule_indexes: names.iter().enumerate().map(|(index, name)| (name.clone(), index)).collect(),
            names,
            clock,
            shards: Mutex::new(shards),
        })
    }

    /// The names of the rules, in the order of the policy.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The index of a rule in the policy.
    pub fn rule_index(&self, name: &str) -> Option<usize> {
        self.rule_indexes.get(name).copied()
    }

    /// The time of the clock of these counters.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// Counts the start of a decision; returns whether it is timed.
    #[inline]
    pub fn begin_decision(&self) -> Sampled {
        match self.with_shard(|shard| shard.decisions.add(1).is_multiple_of(TIMING_INTERVAL)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// Records the time of a sampled decision in memory; it represents 64 decisions.
    pub fn end_decision(&self, started_at: Micros) {
        let took = self.clock.now().saturating_sub(started_at);
        self.with_shard(|shard| shard.decision_latency.record(took, TIMING_INTERVAL));
    }

    /// Records the time of a decision that was not immediate: it used a store, or the request was queued. The time in the
    /// queue is not part of the decision.
    pub fn end_async_decision(&self, started_at: Micros, waited: Micros) {
        let took = self.clock.now().saturating_sub(started_at).saturating_sub(waited);
        self.with_shard(|shard| {
            shard.decision_latency.record(took, 1);
            if waited > Micros::ZERO {
                shard.wait_latency.record(waited, 1);
            }
        });
    }

    /// Records the time from the receipt of a request that these rules admitted to the end of its response, for each rule
    /// and for all requests.
    pub fn record_latency(&self, rules: &[usize], received_at: Micros) {
        if rules.is_empty() {
            return;
        }
        let took = self.clock.now().saturating_sub(received_at);
        let bucket = LatencyBuckets::bucket_index(took);
        self.with_shard(|shard| {
            shard.request_latency.record_in(bucket, took, 1);
            for rule in rules.iter().filter_map(|index| shard.rules.get(*index)) {
                rule.latency.record_in(bucket, took, 1);
            }
        });
    }

    /// Counts a response with this status.
    #[inline]
    pub fn record_response(&self, status: u16, by: ResponseOrigin) {
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        self.with_shard(|shard| shard.responses[by as usize][class].add(1));
    }

    /// Counts a body of a request that rules need.
    pub fn record_request_body(&self, outcome: RequestBodyOutcome) {
        self.with_shard(|shard| shard.request_bodies[outcome as usize].add(1));
    }

    /// Counts the settlement of a request by the rule at this index.
    pub fn record_settlement(&self, index: usize, settled: &SettledCost, end: ResponseEnd) {
        let SettledCost { limit: _, reserved, stated, charged } = *settled;
        let result = match (end, stated) {
            (ResponseEnd::Aborted, _) => SettlementCount::Aborted,
            (ResponseEnd::Complete, Some(_)) => SettlementCount::Stated,
            (ResponseEnd::Complete, None) => SettlementCount::Unstated,
        };
        let counts = [
            (result, 1),
            (SettlementCount::Refunded, reserved.saturating_sub(charged)),
            (SettlementCount::Debt, charged.saturating_sub(reserved)),
            (SettlementCount::Uncharged, stated.map_or(0, |stated| stated.saturating_sub(charged))),
        ];
        self.with_shard(|shard| shard.record_settlement(index, &counts));
    }

    /// Counts the result of a policy.
    #[inline]
    pub(crate) fn record_result(&self, result: &PolicyResult) {
        match result {
            PolicyResult::Admitted(admission) => self.record_admitted(admission),
            PolicyResult::Rejected(rejection) => self.record_rejected(rejection),
        }
    }

    /// Counts a request to which no rule applies.
    #[inline]
    pub fn record_unlimited(&self) {
        self.with_shard(|shard| shard.requests[0].add(1));
    }

    #[inline]
    fn record_admitted(&self, admission: &PolicyAdmission) {
        self.with_shard(|shard| {
            shard.requests[0].add(1);
            let mut flags = [0, 0];
            for decision in admission.decisions() {
                let outcome = match decision.result {
                    RuleResult::Admitted => RuleOutcome::Admitted,
                    RuleResult::Delayed(_) => {
                        flags[0] = 1;
                        RuleOutcome::Delayed
                    }
                    RuleResult::Rejected(_) => {
                        flags[1] = 1;
                        RuleOutcome::ShadowDenied
                    }
                };
                shard.record(decision.rule, outcome, decision.decision);
            }
            if flags != [0, 0] {
                shard.flagged.iter().zip(flags).for_each(|(count, mark)| _ = count.add(mark));
            }
        });
    }

    #[cold]
    fn record_rejected(&self, rejection: &PolicyRejection) {
        let outcome = match rejection.reason {
            RejectReason::Limited => RuleOutcome::Limited,
            RejectReason::NoKey => RuleOutcome::NoKey,
            RejectReason::Unauthenticated => RuleOutcome::Unauthenticated,
            RejectReason::DenyListed => RuleOutcome::DenyListed,
            RejectReason::Banned => RuleOutcome::Banned,
            RejectReason::Overloaded => RuleOutcome::Overloaded,
            RejectReason::QueueFull => RuleOutcome::QueueFull,
            RejectReason::StoreUnavailable => RuleOutcome::StoreUnavailable,
            RejectReason::FeatureOff => RuleOutcome::FeatureOff,
        };
        let decision = rejection.decision.as_ref().map(|(decision, _)| decision);
        self.with_shard(|shard| {
            shard.requests[1].add(1);
            shard.record(rejection.index, outcome, decision);
        });
    }

    /// Counts a request that an operator ban rejected before any rule was checked.
    pub(crate) fn record_banned(&self) {
        self.with_shard(|shard| shard.requests[1].add(1));
    }

    /// Counts a decision of the decision API by the rule at this index.
    pub fn record_decision(&self, index: usize, outcome: RuleOutcome, decision: Option<&Decision>) {
        self.with_shard(|shard| shard.record(index, outcome, decision));
    }

    /// Whether the keys of this request are counted.
    pub(crate) fn sample_key(&self) -> Sampled {
        match self.with_shard(|shard| shard.decisions.get().is_multiple_of(SAMPLE_INTERVAL)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// Counts a key `weight` times; a sampled request represents several.
    pub(crate) fn count_key(
        &self,
        index: usize,
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
            if let Some(sketch) = sketches.get_mut(index) {
                sketch.add(hash, weight, name);
            }
        });
    }

    /// Whether this thread may record another denial in this second.
    pub(crate) fn sample_denial(&self, now: Micros) -> Sampled {
        let second = now.get() / 1_000_000;
        self.with_shard(|shard| lock(&shard.top).sample_denial(second)).unwrap_or(Sampled::No)
    }

    /// The most frequent keys of a rule, over all threads; `None` if the rule does not exist.
    pub fn top(&self, index: usize, by: TopBy) -> Option<TopKeys> {
        let mut inner = self.lock_shards();
        inner.merge_finished();
        let mut sum = inner.top[by as usize].get(index)?.clone();
        for shard in &inner.shards {
            let top = lock(&shard.top);
            if let Some(sketch) = top.sketches[by as usize].get(index) {
                sum.merge(sketch);
            }
        }
        Some(sum)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut inner = self.lock_shards();
        inner.merge_finished();
        let mut sum = inner.finished.clone();
        inner.shards.iter().for_each(|shard| sum.add(&shard.totals()));
        sum
    }

    /// Calls `work` with the shard of this thread.
    #[inline]
    fn with_shard<R>(&self, work: impl FnOnce(&Shard) -> R) -> Option<R> {
        // While a thread ends, its shard is not accessible.
        LOCAL_SHARD
            .try_with(|local| {
                if let Some(shard) = local.borrow().as_deref().filter(|shard| shard.counters_id == self.id) {
                    return work(shard);
                }
                work(&self.register_thread(local))
            })
            .ok()
    }

    #[cold]
    fn register_thread(&self, local: &RefCell<Option<Arc<Shard>>>) -> Arc<Shard> {
        let shard = Arc::new(Shard::new(self.id, self.names.len()));
        let before = local.replace(Some(shard.clone()));
        drop(before);
        let mut inner = self.lock_shards();
        inner.merge_finished();
        inner.shards.push(shard.clone());
        shard
    }

    fn lock_shards(&self) -> MutexGuard<'_, CounterShards> {
        lock(&self.shards)
    }
}

impl CounterShards {
    /// Sums the shards of threads that have ended or use other counters now.
    fn merge_finished(&mut self) {
        let mut index = 0;
        while let Some(shard) = self.shards.get_mut(index) {
            // Without another reference, no thread writes to it.
            if Arc::get_mut(shard).is_none() {
                index += 1;
                continue;
            }
            let shard = self.shards.swap_remove(index);
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
        let counters = new_counters(&["a", "b"], None);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counters = counters.clone();
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        counters.record_decision(1, RuleOutcome::Limited, None);
                    }
                    counters.record_decision(9, RuleOutcome::Limited, None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        counters.record_decision(0, RuleOutcome::Admitted, None);
        let totals = counters.totals();
        assert_eq!(totals.rules[1].outcomes[RuleOutcome::Limited as usize], 4_000);
        assert_eq!(totals.rules[0].outcomes[RuleOutcome::Admitted as usize], 1);
        assert_eq!(counters.lock_shards().shards.len(), 1, "the shards of ended threads are summed");
        assert_eq!(totals, counters.totals());
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
        let counters = new_counters(&[], None);
        let sampled = |second| {
            (0..1_000).filter(|_| counters.sample_denial(Micros::from_secs(second)) == Sampled::Yes).count()
        };
        assert_eq!((sampled(1), sampled(1), sampled(2)), (256, 0, 256));
    }
}
