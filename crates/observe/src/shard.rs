//! The counters of one thread.

use super::{
    counters::TopBy,
    latency::{LatencyBuckets, LatencyRecorder},
};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tidegate_core::Decision;
use tidegate_limiter::TopKeys;

/// The outcome of a rule. The discriminant is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOutcome {
    /// The request was admitted.
    Admitted,
    /// The request was admitted after a wait.
    Delayed,
    /// A quota denied the request.
    Limited,
    /// The request has no key.
    NoKey,
    /// The request has no valid credential, or its address sent too many invalid ones.
    Unauthenticated,
    /// A list denied the request.
    DenyListed,
    /// The key is banned.
    Banned,
    /// A circuit breaker, an adaptive limit or the load of the machine rejected the request.
    Overloaded,
    /// The queue was full, or the wait in it timed out.
    QueueFull,
    /// The store was unavailable, and the rule fails closed.
    StoreUnavailable,
    /// The feature that the request uses was off.
    FeatureOff,
    /// A rule in shadow mode would have denied the request.
    ShadowDenied,
}

/// The names of the outcomes, in order.
pub(crate) const OUTCOME_NAMES: [&str; 12] = [
    "admitted",
    "delayed",
    "limited",
    "no-key",
    "unauthenticated",
    "deny-list",
    "banned",
    "overloaded",
    "queue-full",
    "store-unavailable",
    "feature-off",
    "shadow-denied",
];
/// The names of status classes, in order.
pub(crate) const STATUS_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The outcomes that reject a request.
pub(crate) const DENIED_OUTCOMES: [RuleOutcome; 9] = [
    RuleOutcome::Limited,
    RuleOutcome::NoKey,
    RuleOutcome::Unauthenticated,
    RuleOutcome::DenyListed,
    RuleOutcome::Banned,
    RuleOutcome::Overloaded,
    RuleOutcome::QueueFull,
    RuleOutcome::StoreUnavailable,
    RuleOutcome::FeatureOff,
];

/// How the cost of a request was settled, or a number of tokens of such settlements. The discriminant is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SettlementCount {
    /// Requests whose response stated the cost.
    Stated,
    /// Requests whose response stated no cost.
    Unstated,
    /// Requests whose response ended too early.
    Aborted,
    /// Tokens that were refunded.
    Refunded,
    /// Tokens above the cost before the call.
    Debt,
    /// Tokens above the limit of the debt, which were not charged.
    Uncharged,
}

/// The names of settled requests, and of their tokens, in order.
pub(crate) const SETTLED_REQUESTS: [&str; 3] = ["stated", "unstated", "aborted"];
pub(crate) const SETTLED_TOKENS: [&str; 3] = ["refunded", "debt", "uncharged"];

/// How the body of a request was read for its rules. The discriminant is the index of its counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestBodyOutcome {
    /// It is JSON.
    Parsed,
    /// It is larger than `max-parsed-body-size`.
    TooLarge,
    /// It is not JSON, or it is compressed.
    Invalid,
}

/// The names of these outcomes, in order.
pub(crate) const REQUEST_BODY_OUTCOMES: [&str; 3] = ["parsed", "too-large", "invalid"];

/// The index of the count of decisions without the store, after those of the outcomes.
pub(crate) const DEGRADED_INDEX: usize = OUTCOME_NAMES.len();

/// The counts of one rule.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RuleCounts {
    /// By outcome, followed by [decisions without the store](DEGRADED_INDEX).
    pub(crate) outcomes: [u64; OUTCOME_NAMES.len() + 1],
    /// By [`SettlementCount`].
    pub(crate) settlements: [u64; SETTLED_REQUESTS.len() + SETTLED_TOKENS.len()],
    /// From the head of an admitted request to the last byte of its response.
    pub(crate) latency: LatencyBuckets,
}

/// The sums of the counters of all threads.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Totals {
    /// Admitted requests, and rejected ones.
    pub(crate) requests: [u64; 2],
    /// Admitted requests that had to wait, and those that a rule in shadow mode would have denied.
    pub(crate) flagged: [u64; 2],
    /// Responses by [origin](crate::ResponseOrigin) and the first digit of their status.
    pub(crate) responses: [[u64; 5]; 2],
    /// Bodies of requests that rules need, by [`RequestBodyOutcome`].
    pub(crate) request_bodies: [u64; REQUEST_BODY_OUTCOMES.len()],
    /// By the index of the rule.
    pub(crate) rules: Vec<RuleCounts>,
    /// The time of decisions, without time in a queue.
    pub(crate) decision_latency: LatencyBuckets,
    /// The time in a queue of requests that were queued.
    pub(crate) wait_latency: LatencyBuckets,
    /// From the head to the end of the response, of requests that a rule admitted.
    pub(crate) request_latency: LatencyBuckets,
}

/// The counters of one thread.
pub(super) struct Shard {
    pub(super) counters_id: u64,
    pub(super) decisions: SingleWriterCounter,
    pub(super) requests: [SingleWriterCounter; 2],
    pub(super) flagged: [SingleWriterCounter; 2],
    pub(super) responses: [[SingleWriterCounter; 5]; 2],
    pub(super) request_bodies: [SingleWriterCounter; REQUEST_BODY_OUTCOMES.len()],
    pub(super) rules: Box<[RuleShard]>,
    pub(super) decision_latency: LatencyRecorder,
    pub(super) wait_latency: LatencyRecorder,
    pub(super) request_latency: LatencyRecorder,
    pub(super) top: Mutex<ThreadTopKeys>,
}

/// The counters of one thread for one rule.
#[derive(Default)]
pub(super) struct RuleShard {
    outcomes: [SingleWriterCounter; OUTCOME_NAMES.len() + 1],
    settlements: [SingleWriterCounter; SETTLED_REQUESTS.len() + SETTLED_TOKENS.len()],
    pub(super) latency: LatencyRecorder,
}

/// The most frequent keys of one thread, and its remaining denial records of this second.
pub(super) struct ThreadTopKeys {
    /// By the index of [`TopBy`], then by that of the rule.
    pub(super) sketches: [Vec<TopKeys>; TopBy::ALL.len()],
    second: u64,
    remaining: u32,
}

/// A counter with one writer.
#[derive(Default)]
pub struct SingleWriterCounter(AtomicU64);

/// Whether an event is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampled {
    /// It is recorded.
    Yes,
    /// It is not recorded.
    No,
}

/// Denials that one thread records per second.
const MAX_DENIALS_PER_SECOND: u32 = 256;

impl Shard {
    pub(super) fn new(counters_id: u64, rules: usize) -> Self {
        Self {
            counters_id,
            decisions: SingleWriterCounter::default(),
            requests: Default::default(),
            flagged: Default::default(),
            responses: Default::default(),
            request_bodies: Default::default(),
            rules: (0..rules).map(|_| RuleShard::default()).collect(),
            decision_latency: LatencyRecorder::default(),
            wait_latency: LatencyRecorder::default(),
            request_latency: LatencyRecorder::default(),
            top: Mutex::new(ThreadTopKeys { sketches: Default::default(), second: 0, remaining: 0 }),
        }
    }

    #[inline]
    pub(super) fn record(&self, index: usize, outcome: RuleOutcome, decision: Option<&Decision>) {
        let Some(counts) = self.rules.get(index) else { return };
        counts.outcomes[outcome as usize].add(1);
        if decision.is_some_and(Decision::is_degraded) {
            counts.outcomes[DEGRADED_INDEX].add(1);
        }
    }

    pub(super) fn record_settlement(&self, index: usize, counts: &[(SettlementCount, u64)]) {
        let Some(rule) = self.rules.get(index) else { return };
        for (count, more) in counts {
            rule.settlements[*count as usize].add(*more);
        }
    }

    pub(super) fn totals(&self) -> Totals {
        Totals {
            requests: self.requests.each_ref().map(SingleWriterCounter::get),
            flagged: self.flagged.each_ref().map(SingleWriterCounter::get),
            responses: self
                .responses
                .each_ref()
                .map(|counts| counts.each_ref().map(SingleWriterCounter::get)),
            request_bodies: self.request_bodies.each_ref().map(SingleWriterCounter::get),
            rules: self.rules.iter().map(RuleShard::counts).collect(),
            decision_latency: self.decision_latency.snapshot(),
            wait_latency: self.wait_latency.snapshot(),
            request_latency: self.request_latency.snapshot(),
        }
    }
}

impl RuleShard {
    fn counts(&self) -> RuleCounts {
        RuleCounts {
            outcomes: self.outcomes.each_ref().map(SingleWriterCounter::get),
            settlements: self.settlements.each_ref().map(SingleWriterCounter::get),
            latency: self.latency.snapshot(),
        }
    }
}

impl RuleCounts {
    /// Whether costs were settled.
    pub(super) fn has_settlements(&self) -> bool {
        self.settlements.iter().any(|count| *count > 0)
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.outcomes.iter_mut().zip(other.outcomes).for_each(|(sum, count)| *sum += count);
        self.settlements.iter_mut().zip(other.settlements).for_each(|(sum, count)| *sum += count);
        self.latency.add(&other.latency);
    }
}

impl ThreadTopKeys {
    /// Whether another denial may be recorded in this second.
    pub(super) fn sample_denial(&mut self, second: u64) -> Sampled {
        if self.second != second {
            (self.second, self.remaining) = (second, MAX_DENIALS_PER_SECOND);
        }
        if self.remaining == 0 {
            return Sampled::No;
        }
        self.remaining -= 1;
        Sampled::Yes
    }
}

impl Totals {
    pub(super) fn add(&mut self, other: &Self) {
        let add = |sums: &mut [u64], counts: &[u64]| {
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        };
        add(&mut self.requests, &other.requests);
        add(&mut self.flagged, &other.flagged);
        add(&mut self.request_bodies, &other.request_bodies);
        self.responses.iter_mut().zip(&other.responses).for_each(|(sums, counts)| add(sums, counts));
        self.rules.iter_mut().zip(&other.rules).for_each(|(sums, counts)| sums.add(counts));
        self.decision_latency.add(&other.decision_latency);
        self.wait_latency.add(&other.wait_latency);
        self.request_latency.add(&other.request_latency);
    }

    /// Adds all counts except those of rules.
    pub(crate) fn add_except_rules(&mut self, other: &Self) {
        self.add(&Self { rules: Vec::new(), ..other.clone() });
    }
}

impl SingleWriterCounter {
    /// Adds and returns the sum. Only one thread may call it.
    #[inline]
    pub fn add(&self, more: u64) -> u64 {
        let sum = self.0.load(Relaxed).wrapping_add(more);
        self.0.store(sum, Relaxed);
        sum
    }

    /// Returns the count.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
