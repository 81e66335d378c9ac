//! Counting in one word: the level and the time it is for, in a number that a single compare-and-swap replaces.
//!
//! ```text
//!   word   LOCK | GENERATION | now · drain + level
//! ```
//!
//! The level at a later moment is the word minus that moment's `now · drain`, so nothing but the word is needed,
//! an allowed cost is one swap, and a denial writes nothing. The units are the core's, so it is exact.

use super::{
    cell::{Cell, FastCell, GENERATION_BIT, LOCK_BIT, VALUE_MASK},
    plan::{WordPlan, WordPlans, epoch, generation},
    snapshot::StateSnapshot,
};
use crate::{
    clock::Clock,
    sync::{AtomicU64, Ordering, SpinBackoff},
};
use tidegate_core::{Decision, Demand, Effect, Micros, Quota, Receipt, algorithm::level::Meter};

/// How often the short way tries to swap a word before it goes the long way round.
const MAX_SWAP_ATTEMPTS: usize = 3;

/// A word that nobody may use, because the quota needs more than one: locked for good.
pub(crate) const UNUSED_WORD: u64 = LOCK_BIT;

/// What a word answers to a demand.
pub(crate) struct WordDecision {
    /// When it was decided.
    pub(crate) time: Micros,
    pub(crate) decision: Decision,
    pub(crate) receipt: Receipt,
}

/// A word in a table or on its own, and whose it must be.
pub(crate) trait SingleWord {
    /// The word itself.
    fn word(&self) -> &AtomicU64;
    /// Whether it still belongs to the key it was found for.
    fn is_owned(&self) -> bool;
    /// That key.
    fn owner(&self) -> u64;

    /// Takes `cost` now or not at all, in the straight line of [`SingleWord::decide`]: a quota that never changed, a
    /// word that nobody holds, a swap that soon succeeds. `None` in any other case.
    #[inline(always)]
    fn try_check(&self, plans: &WordPlans, clock: &Clock, cost: u64) -> Option<Decision> {
        let WordPlan { meter, .. } = &plans.initial;
        // The clock first: the less time between reading a word and swapping it, the fewer swaps fail.
        let now = clock.micros().saturating_sub(plans.origin.get());
        for _ in 0..MAX_SWAP_ATTEMPTS {
            let word = self.load_fast(plans)?;
            let empty = plans.initial.empty_at(now);
            let judgement = meter.evaluate(word.saturating_sub(empty), Demand::new(cost));
            if !judgement.is_granted() {
                // Somebody who read the clock after us may have swapped before us: do not deny for that.
                let is_certain = judgement.excess > plans.initial.skew_units;
                return is_certain.then(|| meter.to_decision(judgement));
            }
            if cost == 0 || self.swap(word, empty + judgement.level) {
                return Some(meter.to_decision(judgement));
            }
        }
        None
    }

    /// What `cost` would get now, in the same straight line.
    #[inline(always)]
    fn try_peek(&self, plans: &WordPlans, clock: &Clock, cost: u64) -> Option<Decision> {
        let WordPlan { meter, .. } = &plans.initial;
        let word = self.load_fast(plans)?;
        // After the word: whoever wrote it must not have come later than we do.
        let now = clock.micros().saturating_sub(plans.origin.get());
        let level = word.saturating_sub(plans.initial.empty_at(now));
        let mut judgement = meter.evaluate(level, Demand::probe(cost));
        judgement.level = level;
        Some(meter.to_decision(judgement))
    }

    /// The word of a quota that never changed, if nobody holds it.
    #[inline(always)]
    fn load_fast(&self, plans: &WordPlans) -> Option<u64> {
        let word = self.word().load(Ordering::Acquire);
        let is_usual = (word >> VALUE_MASK.count_ones()) | plans.changes.load(Ordering::Relaxed) == 0;
        (is_usual && self.is_owned()).then_some(word)
    }

    /// Answers a demand; `None` when the word went to another key.
    fn decide(&self, plans: &WordPlans, clock: &Clock, demand: Demand) -> Option<WordDecision> {
        loop {
            // Before the word: a receipt must not outlive a reset that forgets what it proves.
            let resets = plans.resets.get(self.owner());
            let word = self.read()?;
            // After the word: whoever wrote it must not have come later than we do.
            let at = clock.now();
            let since = plans.since_origin(at);
            let (changes, plan) = plans.current();
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let mut judgement = plan.meter.evaluate(level, demand);
            if !judgement.is_granted() || demand.cost == 0 || demand.effect == Effect::Probe {
                if judgement.is_granted() {
                    judgement.level = level;
                }
                let decision = plan.meter.to_decision(judgement);
                return Some(WordDecision { time: at, decision, receipt: Receipt::default() });
            }
            let next = generation(changes) | (plan.empty_at(since) + judgement.level);
            if self.swap(word, next) {
                let receipt = plan.meter.new_receipt(demand.cost, at, level, judgement.level);
                let receipt = Receipt { stored: epoch(changes, resets), ..receipt };
                return Some(WordDecision { time: at, decision: plan.meter.to_decision(judgement), receipt });
            }
        }
    }

    /// Gives back up to `cost` of a receipt. A change of quota or a reset settles what was outstanding before it.
    fn refund(&self, plans: &WordPlans, clock: &Clock, receipt: Receipt, cost: u64) {
        while let Some(word) = self.read() {
            let now = clock.now();
            let since = plans.since_origin(now);
            let (changes, plan) = plans.current();
            if epoch(changes, plans.resets.get(self.owner())) != receipt.stored {
                return;
            }
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let left = plan.meter.level_after_refund(level, now, &receipt, cost.min(receipt.cost));
            let next = generation(changes) | (plan.empty_at(since) + left);
            if left == level || self.swap(word, next) {
                return;
            }
        }
    }

    /// A copy of the state; `None` when the word went to another key.
    fn snapshot(&self, plans: &WordPlans, quota: Quota, clock: &Clock) -> Option<StateSnapshot> {
        loop {
            let word = self.read()?;
            let at = clock.now();
            let (changes, plan) = plans.current();
            if let Some(level) = plans.level(changes, &plan, word, plans.since_origin(at)) {
                return Some(StateSnapshot {
                    time: at,
                    states: vec![(quota, Meter::encode_state(at, level).to_vec())],
                });
            }
        }
    }

    /// Takes over a state that the current quota has in another limiter. The caller keeps the quota from changing.
    fn import_state(&self, plans: &WordPlans, clock: &Clock, words: &[u64]) {
        let now = clock.now();
        while let Some(word) = self.read() {
            let (changes, plan) = plans.current();
            let level = plan.meter.level_at(words, now);
            let next = generation(changes) | (plan.empty_at(plans.since_origin(now)) + level);
            if word >= next || self.swap(word, next) {
                return;
            }
        }
    }

    /// Forgets the key.
    fn reset(&self, plans: &WordPlans, now: Micros) {
        plans.resets.increment(self.owner());
        while let Some(word) = self.read() {
            if self.swap(word, plans.empty_word(now)) {
                return;
            }
        }
    }

    /// Writes the word in units of the current plan.
    fn convert(&self, plans: &WordPlans, now: Micros) {
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

    /// The word, once nobody holds it; `None` when it went to another key.
    fn read(&self) -> Option<u64> {
        let mut backoff = SpinBackoff::default();
        loop {
            let word = self.word().load(Ordering::Acquire);
            // Asked after the word was read: whoever changes the owner changes the word too.
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

/// A word of its own, without a key.
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
