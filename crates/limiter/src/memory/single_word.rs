//! State in one word: the level and its time, in a number that a single compare-and-swap replaces.
//!
//! ```text
//!   word   LOCK | GENERATION | now · units_per_us + level
//! ```
//!
//! The level at a later time is the word minus `now · units_per_us` of that time. So the word is the whole state, an
//! allowed cost is one swap, and a denial writes nothing. The units are those of the core, so it is exact.

use super::{
    cell::{Cell, FastCell, GENERATION_BIT, LOCK_BIT, VALUE_MASK},
    plan::{MAX_EXCESS, WordPlan, WordPlans, epoch, generation},
    snapshot::StateSnapshot,
};
use crate::{
    clock::Clock,
    sync::{AtomicU64, Ordering, SpinBackoff, spin_loop},
};
use tidegate_core::{Decision, Demand, Effect, Micros, Quota, Receipt, algorithm::level::IntegerBucket};

/// The pauses after a failed swap. While a thread pauses, another one swaps the word several times without moving its cache
/// line between cores: that takes longer than all these swaps.
const PAUSES: u32 = 16;

/// The pauses after each further failed swap.
const RETRY_PAUSES: [u32; 2] = [64, 256];

#[cold]
#[inline(never)]
fn pause(pauses: u32) {
    if cfg!(not(loom)) {
        (0..pauses).for_each(|_| spin_loop());
    }
}

/// A permanently locked word, for quotas that need more than one word.
pub(crate) const UNUSED_WORD: u64 = LOCK_BIT;

/// The decision of a word on a demand.
pub(crate) struct WordDecision {
    /// The time of the decision.
    pub(crate) time: Micros,
    pub(crate) decision: Decision,
    pub(crate) receipt: Receipt,
}

/// A word in a table or on its own, and the key that must own it.
pub(crate) trait SingleWord {
    /// The word itself.
    fn word(&self) -> &AtomicU64;
    /// Whether it still belongs to the key for which it was found.
    fn is_owned(&self) -> bool;
    /// The fingerprint of that key.
    fn owner(&self) -> u64;

    /// Takes `cost` now, or denies: the fast path of [`SingleWord::decide`], for a quota that never changed, an unlocked word
    /// and a swap that succeeds. `None` in any other case.
    ///
    /// It contains no call unless the swap fails, so that nothing must be saved around one.
    #[inline(always)]
    fn try_check(&self, plans: &WordPlans, clock: &Clock, cost: u64) -> Option<Decision> {
        // Read the clock first: the shorter the time between loading and swapping the word, the fewer swaps fail.
        let now = clock.try_micros()?;
        self.try_check_at(plans, now, cost, PAUSES)
    }

    /// Tries it again, also when the clock needs a correction.
    fn retry_check(&self, plans: &WordPlans, clock: &Clock, cost: u64) -> Option<Decision> {
        RETRY_PAUSES.into_iter().find_map(|pauses| self.try_check_at(plans, clock.micros(), cost, pauses))
    }

    /// One attempt at this time of the clock. Pauses after a failed swap.
    ///
    /// It decides as [`IntegerBucket::evaluate`], but compares words instead of levels: that takes fewer instructions.
    #[inline(always)]
    fn try_check_at(&self, plans: &WordPlans, now: u64, cost: u64, pauses: u32) -> Option<Decision> {
        let WordPlan { integer_bucket, certain_excess, .. } = &plans.initial;
        let word = self.word().load(Ordering::Acquire);
        let empty = plans.try_empty_word(now)?;
        if !self.is_owned() {
            return None;
        }
        let highest = empty + plans.initial.highest_level_for(cost)?;
        if word > highest {
            let excess = word - highest;
            // A thread that read the clock later may have swapped earlier: do not deny because of that. Nor because of the bits
            // of a lock or a generation. One comparison finds both: a smaller excess wraps around, and these bits are higher.
            let is_certain = excess.wrapping_sub(*certain_excess) <= MAX_EXCESS;
            return is_certain.then(|| integer_bucket.deny(word - empty, excess));
        }
        let level = word.saturating_sub(empty) + cost * integer_bucket.units_per_token;
        if cost == 0 || self.swap(word, empty + level) {
            return Some(integer_bucket.allow(level));
        }
        pause(pauses);
        None
    }

    /// The decision that `cost` would get now, on the same fast path.
    #[inline(always)]
    fn try_peek(&self, plans: &WordPlans, clock: &Clock, cost: u64) -> Option<Decision> {
        let WordPlan { integer_bucket, .. } = &plans.initial;
        let word = self.word().load(Ordering::Acquire);
        // Read the clock after the word, so that the word is not from a later time.
        let empty = plans.try_empty_word(clock.micros())?;
        if word > VALUE_MASK || !self.is_owned() {
            return None;
        }
        let level = word.saturating_sub(empty);
        let mut outcome = integer_bucket.evaluate(level, Demand::peek(cost));
        outcome.level = level;
        Some(integer_bucket.to_decision(outcome))
    }

    /// Decides a demand; `None` if the word was reassigned to another key.
    fn decide(&self, plans: &WordPlans, clock: &Clock, demand: Demand) -> Option<WordDecision> {
        loop {
            // Read before the word, so that no receipt outlives a reset of its key.
            let resets = plans.resets.get(self.owner());
            let word = self.read()?;
            // Read the clock after the word, so that the word is not from a later time.
            let at = clock.now();
            let since = plans.since_origin(at);
            let (changes, plan) = plans.current();
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let mut outcome = plan.integer_bucket.evaluate(level, demand);
            if !outcome.is_granted() || demand.cost == 0 || demand.effect == Effect::Peek {
                if outcome.is_granted() {
                    outcome.level = level;
                }
                let decision = plan.integer_bucket.to_decision(outcome);
                return Some(WordDecision { time: at, decision, receipt: Receipt::default() });
            }
            let next = generation(changes) | (plan.empty_at(since) + outcome.level);
            if self.swap(word, next) {
                let receipt = plan.integer_bucket.new_receipt(demand.cost, at, level, outcome.level);
                let receipt = Receipt { permits_or_epoch: epoch(changes, resets), ..receipt };
                return Some(WordDecision {
                    time: at,
                    decision: plan.integer_bucket.to_decision(outcome),
                    receipt,
                });
            }
        }
    }

    /// Refunds up to `cost` of a receipt. Receipts from before a change of quota or a reset are ignored.
    fn refund(&self, plans: &WordPlans, clock: &Clock, receipt: Receipt, cost: u64) {
        while let Some(word) = self.read() {
            let now = clock.now();
            let since = plans.since_origin(now);
            let (changes, plan) = plans.current();
            if epoch(changes, plans.resets.get(self.owner())) != receipt.permits_or_epoch {
                return;
            }
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let left = plan.integer_bucket.level_after_refund(level, now, &receipt, cost.min(receipt.cost));
            let next = generation(changes) | (plan.empty_at(since) + left);
            if left == level || self.swap(word, next) {
                return;
            }
        }
    }

    /// A copy of the state; `None` if the word was reassigned to another key.
    fn snapshot(&self, plans: &WordPlans, quota: Quota, clock: &Clock) -> Option<StateSnapshot> {
        loop {
            let word = self.read()?;
            let at = clock.now();
            let (changes, plan) = plans.current();
            if let Some(level) = plans.level(changes, &plan, word, plans.since_origin(at)) {
                return Some(StateSnapshot {
                    time: at,
                    states: vec![(quota, IntegerBucket::encode_state(at, level).to_vec())],
                });
            }
        }
    }

    /// Imports the state of the current quota from another limiter. The caller prevents changes of the quota meanwhile.
    fn import_state(&self, plans: &WordPlans, clock: &Clock, state: &[u64]) {
        let now = clock.now();
        while let Some(word) = self.read() {
            let (changes, plan) = plans.current();
            let level = plan.integer_bucket.level_at(state, now);
            let next = generation(changes) | (plan.empty_at(plans.since_origin(now)) + level);
            if word >= next || self.swap(word, next) {
                return;
            }
        }
    }

    /// Resets the key.
    fn reset(&self, plans: &WordPlans, now: Micros) {
        plans.resets.increment(self.owner());
        while let Some(word) = self.read() {
            if self.swap(word, plans.empty_word(now)) {
                return;
            }
        }
    }

    /// Converts the word to units of the current plan.
    fn convert_state(&self, plans: &WordPlans, now: Micros) {
        let since = plans.since_origin(now);
        while let Some(word) = self.read() {
            let (changes, plan) = plans.current();
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let next = generation(changes) | (plan.empty_at(since) + level);
            if word & GENERATION_BIT == generation(changes) || self.swap(word, next) {
                return;
            }
        }
    }

    /// The word, after waiting for its lock; `None` if it was reassigned to another key.
    fn read(&self) -> Option<u64> {
        let mut backoff = SpinBackoff::default();
        loop {
            let word = self.word().load(Ordering::Acquire);
            // Check the owner after loading the word: a thread that changes the owner changes the word too.
            if !self.is_owned() {
                return None;
            }
            if word & LOCK_BIT == 0 {
                return Some(word);
            }
            backoff.pause();
        }
    }

    #[inline]
    fn swap(&self, word: u64, next: u64) -> bool {
        self.word().compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl SingleWord for Cell<'_> {
    #[inline]
    fn word(&self) -> &AtomicU64 {
        self.head()
    }

    #[inline]
    fn is_owned(&self) -> bool {
        Self::is_owned(self)
    }

    fn owner(&self) -> u64 {
        self.owner
    }
}

impl SingleWord for FastCell<'_> {
    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        self.head()
    }

    #[inline(always)]
    fn is_owned(&self) -> bool {
        Self::is_owned(self)
    }

    fn owner(&self) -> u64 {
        self.owner
    }
}

/// A standalone word, without a key.
impl SingleWord for AtomicU64 {
    #[inline]
    fn word(&self) -> &AtomicU64 {
        self
    }

    #[inline]
    fn is_owned(&self) -> bool {
        true
    }

    fn owner(&self) -> u64 {
        0
    }
}
