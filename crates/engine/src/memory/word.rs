//! Counting in one word: the level and the time it is for, in a number that a single compare-and-swap replaces.
//!
//! ```text
//!   word   LOCK | GENERATION | now · drain + level
//! ```
//!
//! The level at a later moment is the word minus that moment's `now · drain`, so nothing but the word is needed,
//! an allowed cost is one swap, and a denial writes nothing. The units are the core's, so it is exact.

use super::{
    cell::{Cell, GENERATION, LOCK, Near, VALUE},
    resets::Resets,
    sketch::Sketch,
};
use crate::{
    clock::Clock,
    sync::{AtomicU64, Backoff, Ordering, fence},
};
use tidegate_core::{
    Decision, Demand, Effect, Inherit, Kind, Micros, Quota, Receipt, algorithm::level::Meter,
};

/// The most that may have drained since a limiter was made; a level fits above it.
const MOST_DRAINED: u64 = (1 << 61) - 1;
/// Quotas that drain faster than this many units per microsecond need more than one word. What drains slower fits
/// for 17 years at least, and what drains by one unit for ever.
pub(crate) const MOST_DRAIN: u64 = 1 << 12;

/// How often the short way tries to swap a word before it goes the long way round.
const TRIES: usize = 3;

/// One second, in microseconds.
const LONGEST_OVERTAKING: u64 = 1_000_000;

/// A quota in the form that a word needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    meter: Meter,
    /// The time after which a word has no room for more: it stands still.
    longest: u64,
    /// What drains in the longest time by which one caller may overtake another between clock and word.
    overtaken: u64,
}

impl Plan {
    fn new(meter: Meter) -> Self {
        Self {
            meter,
            longest: MOST_DRAINED / meter.drain.max(1),
            overtaken: meter.drain.saturating_mul(LONGEST_OVERTAKING),
        }
    }

    /// `None` when the quota needs more than one word.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        let meter = match quota.kind() {
            Kind::TokenBucket(it) => *it.meter(),
            Kind::LeakyBucket(it) => *it.meter(),
            _ => return None,
        };
        (meter.drain < MOST_DRAIN).then(|| Self::new(meter))
    }

    /// The word of a level of zero, so long after the limiter was made.
    #[inline]
    fn empty_at(&self, since: u64) -> u64 {
        since.min(self.longest) * self.meter.drain
    }
}

/// A word that nobody may use, because the quota needs more than one: locked for good.
pub(crate) const UNUSED: u64 = LOCK;

/// The current plan and the one before it, read without a lock: a reader tries again if a writer was there.
#[derive(Debug)]
pub(crate) struct Plans {
    epoch: Micros,
    /// The plan of a limiter that was never changed, which is most of them.
    first: Plan,
    changes: AtomicU64,
    resets: Resets,
    slots: [PlanWords; 2],
    inherit: AtomicU64,
}

#[derive(Debug, Default)]
struct PlanWords([AtomicU64; 4]);

impl PlanWords {
    #[inline]
    fn load(&self) -> Plan {
        let [price, drain, capacity, queue] = &self.0;
        Plan::new(Meter {
            price: price.load(Ordering::Relaxed),
            drain: drain.load(Ordering::Relaxed),
            capacity: capacity.load(Ordering::Relaxed),
            queue: queue.load(Ordering::Relaxed),
        })
    }

    fn store(&self, plan: Plan) {
        let Meter { price, drain, capacity, queue } = plan.meter;
        for (word, value) in self.0.iter().zip([price, drain, capacity, queue]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Plans {
    /// Plans for a word that is never used, see [`UNUSED`].
    pub(crate) fn unused() -> Self {
        let meter = Meter { price: 1, drain: 1, capacity: 1, queue: 1 };
        Self::new(Plan::new(meter), Micros::ZERO, Resets::of_one())
    }

    /// Plans for a limiter that is made at `epoch`.
    pub(crate) fn new(plan: Plan, epoch: Micros, resets: Resets) -> Self {
        let plans = Self {
            epoch,
            first: plan,
            changes: AtomicU64::new(0),
            resets,
            slots: [PlanWords::default(), PlanWords::default()],
            inherit: AtomicU64::new(0),
        };
        plans.slots[0].store(plan);
        plans
    }

    /// The current plan, and how often it has changed.
    pub(crate) fn current(&self) -> (u64, Plan) {
        loop {
            let changes = self.changes.load(Ordering::Acquire);
            let plan = self.slots[(changes & 1) as usize].load();
            fence(Ordering::Acquire);
            if self.changes.load(Ordering::Relaxed) == changes {
                return (changes, plan);
            }
        }
    }

    /// Replaces the plan. The caller sees to it that there is one change at a time, and that every word has been
    /// converted to the current plan before the next change.
    pub(crate) fn change(&self, plan: Plan, how: Inherit) {
        let changes = self.changes.load(Ordering::Relaxed);
        // Whoever sees a part of the new plan must also see that the one in its place is no longer current.
        fence(Ordering::Release);
        self.inherit.store(how as u64, Ordering::Relaxed);
        self.slots[(changes & 1 ^ 1) as usize].store(plan);
        self.changes.store(changes + 1, Ordering::Release);
    }

    /// Microseconds since the limiter was made.
    pub(crate) fn since_epoch(&self, now: Micros) -> u64 {
        now.since(self.epoch).get()
    }

    /// A word that says nothing: empty at `now`.
    pub(crate) fn empty(&self, now: Micros) -> u64 {
        let (changes, plan) = self.current();
        generation(changes) | plan.empty_at(self.since_epoch(now))
    }

    /// Whether a word says nothing any more.
    pub(crate) fn is_spent(&self, word: u64, now: Micros) -> bool {
        let (changes, current) = self.current();
        let plan = if word & GENERATION == generation(changes) { current } else { self.previous(changes) };
        // Strictly: a cell's next word is then larger than any it ever had, and no stale swap can succeed.
        word & VALUE < plan.empty_at(self.since_epoch(now))
    }

    /// The most that is granted at once.
    pub(crate) fn limit(&self) -> u64 {
        let Meter { price, capacity, .. } = self.current().1.meter;
        capacity / price
    }

    /// Answers a demand on a word that the caller has locked, by the plan that it read since; returns the word to
    /// unlock it with, and the level that a receipt is marked with.
    pub(crate) fn decide_locked(
        &self,
        (changes, plan): (u64, Plan),
        word: u64,
        now: Micros,
        demand: Demand,
    ) -> (Decision, u64, u64) {
        let since = self.since_epoch(now);
        let level = self.convert(changes, &plan, word, since);
        let mut judgement = plan.meter.judge(level, demand);
        let mut next = word;
        if judgement.is_granted() && demand.effect == Effect::Probe {
            judgement.level = level;
        } else if judgement.is_granted() && demand.cost > 0 {
            next = generation(changes) | (plan.empty_at(since) + judgement.level);
        }
        (plan.meter.decision(judgement), next, judgement.level)
    }

    /// How often a key has been forgotten.
    pub(crate) fn resets_of(&self, owner: u64) -> u64 {
        self.resets.seen(owner)
    }

    fn previous(&self, changes: u64) -> Plan {
        self.slots[(changes & 1 ^ 1) as usize].load()
    }

    fn inherit(&self) -> Inherit {
        let how = self.inherit.load(Ordering::Relaxed);
        [Inherit::Additive, Inherit::AsIs, Inherit::Proportionally, Inherit::Reset]
            .into_iter()
            .find(|known| *known as u64 == how)
            .unwrap_or_default()
    }

    /// The level that a word means at `now`, in units of the current plan; `None` when that has changed meanwhile.
    fn level(&self, changes: u64, plan: &Plan, word: u64, now: u64) -> Option<u64> {
        let level = self.convert(changes, plan, word, now);
        fence(Ordering::Acquire);
        (self.changes.load(Ordering::Relaxed) == changes).then_some(level)
    }

    fn convert(&self, changes: u64, plan: &Plan, word: u64, now: u64) -> u64 {
        if word & GENERATION == generation(changes) {
            return (word & VALUE).saturating_sub(plan.empty_at(now));
        }
        let old = self.previous(changes);
        let level = (word & VALUE).saturating_sub(old.empty_at(now));
        plan.meter.convert(&old.meter, level, self.inherit())
    }
}

/// Names the stretch of time in which receipts are good: between changes of the quota and resets of the key.
pub(super) fn settlement(changes: u64, resets: u64) -> u64 {
    changes << 32 | resets & u64::from(u32::MAX)
}

#[inline]
fn generation(changes: u64) -> u64 {
    (changes & 1) * GENERATION
}

/// What a word answers to a demand.
pub(crate) struct Answer {
    /// When it was decided.
    pub(crate) at: Micros,
    pub(crate) decision: Decision,
    pub(crate) receipt: Receipt,
}

/// A word in a table or on its own, and whose it must be.
pub(crate) trait Word {
    /// The word itself.
    fn word(&self) -> &AtomicU64;
    /// Whether it still belongs to the key it was found for.
    fn is_ours(&self) -> bool;
    /// That key.
    fn owner(&self) -> u64;

    /// Takes `cost` now or not at all, in the straight line of [`Word::decide`]: a quota that never changed, a
    /// word that nobody holds, a swap that soon succeeds. `None` in any other case.
    #[inline(always)]
    fn try_check(&self, plans: &Plans, clock: &Clock, cost: u64) -> Option<Decision> {
        let Plan { meter, .. } = &plans.first;
        // The clock first: the less time between reading a word and swapping it, the fewer swaps fail.
        let now = clock.micros().saturating_sub(plans.epoch.get());
        for _ in 0..TRIES {
            let word = self.usual(plans)?;
            let empty = plans.first.empty_at(now);
            let judgement = meter.judge(word.saturating_sub(empty), Demand::now(cost));
            if !judgement.is_granted() {
                // Somebody who read the clock after us may have swapped before us: do not deny for that.
                let is_certain = judgement.excess > plans.first.overtaken;
                return is_certain.then(|| meter.decision(judgement));
            }
            if cost == 0 || self.swap(word, empty + judgement.level) {
                return Some(meter.decision(judgement));
            }
        }
        None
    }

    /// What `cost` would get now, in the same straight line.
    #[inline(always)]
    fn try_peek(&self, plans: &Plans, clock: &Clock, cost: u64) -> Option<Decision> {
        let Plan { meter, .. } = &plans.first;
        let word = self.usual(plans)?;
        // After the word: whoever wrote it must not have come later than we do.
        let now = clock.micros().saturating_sub(plans.epoch.get());
        let level = word.saturating_sub(plans.first.empty_at(now));
        let mut judgement = meter.judge(level, Demand::probe(cost));
        judgement.level = level;
        Some(meter.decision(judgement))
    }

    /// The word of a quota that never changed, if nobody holds it.
    #[inline(always)]
    fn usual(&self, plans: &Plans) -> Option<u64> {
        let word = self.word().load(Ordering::Acquire);
        let is_usual = (word >> VALUE.count_ones()) | plans.changes.load(Ordering::Relaxed) == 0;
        (is_usual && self.is_ours()).then_some(word)
    }

    /// Answers a demand; `None` when the word went to another key.
    fn decide(&self, plans: &Plans, clock: &Clock, demand: Demand) -> Option<Answer> {
        loop {
            // Before the word: a receipt must not outlive a reset that forgets what it proves.
            let resets = plans.resets.seen(self.owner());
            let word = self.read()?;
            // After the word: whoever wrote it must not have come later than we do.
            let at = clock.now();
            let since = plans.since_epoch(at);
            let (changes, plan) = plans.current();
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let mut judgement = plan.meter.judge(level, demand);
            if !judgement.is_granted() || demand.cost == 0 || demand.effect == Effect::Probe {
                if judgement.is_granted() {
                    judgement.level = level;
                }
                let decision = plan.meter.decision(judgement);
                return Some(Answer { at, decision, receipt: Receipt::default() });
            }
            let next = generation(changes) | (plan.empty_at(since) + judgement.level);
            if self.swap(word, next) {
                let stored = settlement(changes, resets);
                let receipt = Receipt { cost: demand.cost, at, mark: judgement.level, stored };
                return Some(Answer { at, decision: plan.meter.decision(judgement), receipt });
            }
        }
    }

    /// Gives back up to `cost` of a receipt. A change of quota or a reset settles what was outstanding before it.
    fn refund(&self, plans: &Plans, clock: &Clock, receipt: Receipt, cost: u64) {
        while let Some(word) = self.read() {
            let now = clock.now();
            let since = plans.since_epoch(now);
            let (changes, plan) = plans.current();
            if settlement(changes, plans.resets.seen(self.owner())) != receipt.stored {
                return;
            }
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let left = plan.meter.after_refund(level, now, &receipt, cost.min(receipt.cost));
            let next = generation(changes) | (plan.empty_at(since) + left);
            if left == level || self.swap(word, next) {
                return;
            }
        }
    }

    /// A copy of the state; `None` when the word went to another key.
    fn sketch(&self, plans: &Plans, quota: Quota, clock: &Clock) -> Option<Sketch> {
        loop {
            let word = self.read()?;
            let at = clock.now();
            let (changes, plan) = plans.current();
            if let Some(level) = plans.level(changes, &plan, word, plans.since_epoch(at)) {
                return Some(Sketch { at, states: vec![(quota, Meter::words(at, level).to_vec())] });
            }
        }
    }

    /// Forgets the key.
    fn reset(&self, plans: &Plans, now: Micros) {
        plans.resets.add(self.owner());
        while let Some(word) = self.read() {
            if self.swap(word, plans.empty(now)) {
                return;
            }
        }
    }

    /// Writes the word in units of the current plan.
    fn convert(&self, plans: &Plans, now: Micros) {
        let since = plans.since_epoch(now);
        while let Some(word) = self.read() {
            let (changes, plan) = plans.current();
            let Some(level) = plans.level(changes, &plan, word, since) else { continue };
            let next = generation(changes) | (plan.empty_at(since) + level);
            if word & GENERATION == generation(changes) || self.swap(word, next) {
                return;
            }
        }
    }

    /// The word, once nobody holds it; `None` when it went to another key.
    fn read(&self) -> Option<u64> {
        let mut backoff = Backoff::default();
        loop {
            let word = self.word().load(Ordering::Acquire);
            // Asked after the word was read: whoever changes the owner changes the word too.
            if !self.is_ours() {
                return None;
            }
            if word & LOCK == 0 {
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

impl Word for Cell<'_> {
    #[inline]
    fn word(&self) -> &AtomicU64 {
        self.head()
    }

    #[inline]
    fn is_ours(&self) -> bool {
        Self::is_ours(self)
    }

    fn owner(&self) -> u64 {
        self.owner
    }
}

impl Word for Near<'_> {
    #[inline(always)]
    fn word(&self) -> &AtomicU64 {
        self.head()
    }

    #[inline(always)]
    fn is_ours(&self) -> bool {
        Self::is_ours(self)
    }

    fn owner(&self) -> u64 {
        self.owner
    }
}

/// A word of its own, without a key.
impl Word for AtomicU64 {
    #[inline]
    fn word(&self) -> &AtomicU64 {
        self
    }

    #[inline]
    fn is_ours(&self) -> bool {
        true
    }

    fn owner(&self) -> u64 {
        0
    }
}
