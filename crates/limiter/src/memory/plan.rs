//! The quota of single-word states: the current one and the previous one, read without a lock.

use super::{
    cell::{Cell, GENERATION_BIT, VALUE_MASK},
    resets::ResetCounters,
    table::{CellStates, EvictionScore},
};
use crate::sync::{AtomicU64, Ordering, fence};
use tidegate_core::{
    AlgorithmKind, CarryOver, Decision, Demand, Effect, LARGEST_EXACT, Micros, Quota, Receipt,
    algorithm::level::IntegerBucket,
};

/// The most units that can drain since the creation of a limiter; a level fits above it.
const MAX_DRAINED_UNITS: u64 = (1 << 61) - 1;
/// Quotas that drain faster than this many units per microsecond need more than one word. Slower ones fit for at least 17
/// years; at one unit per microsecond they fit forever.
pub(crate) const MAX_UNITS_PER_US: u64 = 1 << 12;

/// Levels are below 2^53, and a word that is locked or has another generation exceeds every level by more than this.
pub(super) const MAX_EXCESS: u64 = (1 << 60) - 1;
const _: () = assert!(GENERATION_BIT - MAX_DRAINED_UNITS - LARGEST_EXACT > MAX_EXCESS + LARGEST_EXACT);

/// One second, in microseconds.
const MAX_CLOCK_SKEW_US: u64 = 1_000_000;

/// A quota in the form that a single word needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WordPlan {
    pub(super) integer_bucket: IntegerBucket,
    /// The elapsed time at which a word is full and time stops.
    max_elapsed_us: u64,
    /// The least excess of a certain denial: more units than drain in the longest delay between reading the clock and swapping
    /// the word.
    pub(super) certain_excess: u64,
    /// The highest level at which one token is granted.
    highest_level_for_one: u64,
}

impl WordPlan {
    fn new(integer_bucket: IntegerBucket) -> Self {
        Self {
            integer_bucket,
            max_elapsed_us: MAX_DRAINED_UNITS / integer_bucket.units_per_us.max(1),
            certain_excess: integer_bucket.units_per_us.saturating_mul(MAX_CLOCK_SKEW_US).saturating_add(1),
            highest_level_for_one: integer_bucket.capacity.saturating_sub(integer_bucket.units_per_token),
        }
    }

    /// `None` when the quota needs more than one word.
    pub(crate) fn from_quota(quota: &Quota) -> Option<Self> {
        let integer_bucket = match quota.kind() {
            AlgorithmKind::TokenBucket(bucket) => *bucket.integer_bucket(),
            AlgorithmKind::LeakyBucket(bucket) => *bucket.integer_bucket(),
            _ => return None,
        };
        // A word of zero is a new key with a full bucket.
        let fits = integer_bucket.units_per_us < MAX_UNITS_PER_US && integer_bucket.initial_level == 0;
        fits.then(|| Self::new(integer_bucket))
    }

    /// The highest level at which `cost` is granted; `None` if it exceeds the capacity.
    #[inline(always)]
    pub(super) fn highest_level_for(&self, cost: u64) -> Option<u64> {
        match cost {
            1 => Some(self.highest_level_for_one),
            _ => self.integer_bucket.highest_level_for(cost),
        }
    }

    /// The word of a level of zero, `since` microseconds after the creation of the limiter.
    #[inline]
    pub(super) fn empty_at(&self, since: u64) -> u64 {
        since.min(self.max_elapsed_us) * self.integer_bucket.units_per_us
    }
}

/// The current plan and the previous one, read without a lock: a reader retries if a writer interfered.
#[derive(Debug)]
pub(crate) struct WordPlans {
    pub(super) origin: Micros,
    /// The plan of a limiter that was never changed: the common case.
    pub(super) initial: WordPlan,
    /// The elapsed time at which the fast path ends: zero once the quota has changed.
    fast_until: AtomicU64,
    changes: AtomicU64,
    pub(super) resets: ResetCounters,
    slots: [AtomicPlan; 2],
    /// Whether words of the previous plan are reset.
    is_reset: AtomicU64,
}

#[derive(Debug, Default)]
struct AtomicPlan([AtomicU64; 4]);

impl AtomicPlan {
    #[inline]
    fn load(&self) -> WordPlan {
        let [units_per_token, units_per_us, capacity, queue] = &self.0;
        WordPlan::new(IntegerBucket {
            units_per_token: units_per_token.load(Ordering::Relaxed),
            units_per_us: units_per_us.load(Ordering::Relaxed),
            capacity: capacity.load(Ordering::Relaxed),
            queue: queue.load(Ordering::Relaxed),
            initial_level: 0,
        })
    }

    fn store(&self, plan: WordPlan) {
        let IntegerBucket { units_per_token, units_per_us, capacity, queue, .. } = plan.integer_bucket;
        for (word, value) in self.0.iter().zip([units_per_token, units_per_us, capacity, queue]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl WordPlans {
    /// Plans for a word that is never used, see [`super::UNUSED_WORD`].
    pub(crate) fn placeholder() -> Self {
        let integer_bucket =
            IntegerBucket { units_per_token: 1, units_per_us: 1, capacity: 1, queue: 1, initial_level: 0 };
        Self::new(WordPlan::new(integer_bucket), Micros::ZERO, ResetCounters::single())
    }

    /// Plans for a limiter that is created at `origin`.
    pub(crate) fn new(plan: WordPlan, origin: Micros, resets: ResetCounters) -> Self {
        let plans = Self {
            origin,
            initial: plan,
            fast_until: AtomicU64::new(plan.max_elapsed_us),
            changes: AtomicU64::new(0),
            resets,
            slots: [AtomicPlan::default(), AtomicPlan::default()],
            is_reset: AtomicU64::new(0),
        };
        plans.slots[0].store(plan);
        plans
    }

    /// The current plan, and the number of changes.
    pub(crate) fn current(&self) -> (u64, WordPlan) {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let plan = self.slots[(changes & 1) as usize].load();
            fence(Ordering::Acquire);
            if self.changes.load(Ordering::Relaxed) == changes {
                return (changes, plan);
            }
        }
    }

    /// Replaces the plan. The caller must serialize the changes, and convert every word to the current plan before the next
    /// change.
    pub(crate) fn change(&self, plan: WordPlan, how: CarryOver) {
        let changes = self.changes.load(Ordering::Relaxed);
        // A reader that sees part of the new plan must also see that the plan in this slot is not the current one.
        fence(Ordering::Release);
        self.fast_until.store(0, Ordering::Relaxed);
        self.is_reset.store((how == CarryOver::Reset).into(), Ordering::Relaxed);
        self.slots[(changes & 1 ^ 1) as usize].store(plan);
        self.changes.store(changes + 1, Ordering::Release);
    }

    /// Microseconds since the creation of the limiter.
    pub(crate) fn since_origin(&self, now: Micros) -> u64 {
        now.saturating_sub(self.origin).get()
    }

    /// The word of an empty state at `now`.
    pub(crate) fn empty_word(&self, now: Micros) -> u64 {
        let (changes, plan) = self.current();
        generation(changes) | plan.empty_at(self.since_origin(now))
    }

    /// The word of an empty state, for the fast path; `None` if the quota has changed, the time is before the creation of the
    /// limiter, or time has stopped. Call it after the word is loaded: a change ends the
    /// fast path before it converts words.
    #[inline(always)]
    pub(super) fn try_empty_word(&self, now: u64) -> Option<u64> {
        let since = now.wrapping_sub(self.origin.get());
        (since < self.fast_until.load(Ordering::Relaxed))
            .then(|| since * self.initial.integer_bucket.units_per_us)
    }

    /// Whether the state of a word has expired.
    pub(crate) fn is_expired(&self, word: u64, now: Micros) -> bool {
        let (changes, current) = self.current();
        let plan =
            if word & GENERATION_BIT == generation(changes) { current } else { self.previous(changes) };
        // Strictly less: the next word of a cell is then larger than all earlier ones, and no stale swap can succeed.
        word & VALUE_MASK < plan.empty_at(self.since_origin(now))
    }

    /// The states of words at `now`.
    pub(crate) fn states_at(&self, now: Micros) -> WordPlansAt<'_> {
        WordPlansAt { plans: self, now }
    }

    /// The largest cost that can be granted at once.
    pub(crate) fn limit(&self) -> u64 {
        let IntegerBucket { units_per_token, capacity, .. } = self.current().1.integer_bucket;
        capacity / units_per_token
    }

    /// Decides a demand on a word that the caller has locked, by a plan that was read under the lock; returns the word to
    /// unlock it with, and the receipt of a charge.
    pub(crate) fn decide_locked(
        &self,
        (changes, plan): (u64, WordPlan),
        word: u64,
        now: Micros,
        demand: Demand,
    ) -> (Decision, u64, Receipt) {
        let since = self.since_origin(now);
        let level = self.convert_level(changes, &plan, word, since);
        let mut outcome = plan.integer_bucket.evaluate(level, demand);
        let (mut next, mut receipt) = (word, Receipt::default());
        if outcome.is_granted() && demand.effect == Effect::Peek {
            outcome.level = level;
        } else if outcome.is_granted() && demand.cost > 0 {
            next = generation(changes) | (plan.empty_at(since) + outcome.level);
            receipt = plan.integer_bucket.new_receipt(demand.cost, now, level, outcome.level);
        }
        (plan.integer_bucket.to_decision(outcome), next, receipt)
    }

    /// The number of resets of a key.
    pub(crate) fn reset_count(&self, owner: u64) -> u64 {
        self.resets.get(owner)
    }

    fn previous(&self, changes: u64) -> WordPlan {
        self.slots[(changes & 1 ^ 1) as usize].load()
    }

    /// The level of a word at `now`, in units of the current plan; `None` if the plan has changed meanwhile.
    pub(super) fn level(&self, changes: u64, plan: &WordPlan, word: u64, now: u64) -> Option<u64> {
        let level = self.convert_level(changes, plan, word, now);
        fence(Ordering::Acquire);
        (self.changes.load(Ordering::Relaxed) == changes).then_some(level)
    }

    fn convert_level(&self, changes: u64, plan: &WordPlan, word: u64, now: u64) -> u64 {
        if word & GENERATION_BIT == generation(changes) {
            return (word & VALUE_MASK).saturating_sub(plan.empty_at(now));
        }
        let old = self.previous(changes);
        let level = (word & VALUE_MASK).saturating_sub(old.empty_at(now));
        match self.is_reset.load(Ordering::Relaxed) {
            0 => plan.integer_bucket.convert_level(&old.integer_bucket, level),
            _ => 0,
        }
    }
}

/// The states of words at a given time.
pub(crate) struct WordPlansAt<'a> {
    plans: &'a WordPlans,
    now: Micros,
}

impl CellStates for WordPlansAt<'_> {
    fn empty_head(&self) -> u64 {
        self.plans.empty_word(self.now)
    }

    fn is_expired(&self, head: u64) -> bool {
        self.plans.is_expired(head, self.now)
    }

    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore> {
        let (decision, ..) = self.plans.decide_locked(self.plans.current(), head, self.now, Demand::peek(1));
        if !decision.is_allowed() {
            cell.unlock(head);
            return None;
        }
        Some(EvictionScore::new(&decision, head))
    }

    fn on_evict(&self, owner: u64) {
        self.plans.resets.increment(owner);
    }

    const IS_RANKED: bool = true;
}

/// The epoch in which receipts are valid: between changes of the quota and resets of the key.
pub(super) fn epoch(changes: u64, resets: u64) -> u64 {
    changes << 32 | resets & u64::from(u32::MAX)
}

#[inline]
pub(super) fn generation(changes: u64) -> u64 {
    (changes & 1) * GENERATION_BIT
}
