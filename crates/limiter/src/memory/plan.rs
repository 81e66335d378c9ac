//! The quota that words are counted by: the current one and the one before it, read without a lock.

use super::{
    cell::{Cell, GENERATION, VALUE},
    resets::Resets,
    table::{Appraised, States},
};
use crate::sync::{AtomicU64, Ordering, fence};
use tidegate_core::{
    AlgorithmKind, CarryOver, Decision, Demand, Effect, Micros, Quota, Receipt, algorithm::level::Meter,
};

/// The most that may have drained since a limiter was made; a level fits above it.
const MOST_DRAINED: u64 = (1 << 61) - 1;
/// Quotas that drain faster than this many units per microsecond need more than one word. What drains slower fits
/// for 17 years at least, and what drains by one unit for ever.
pub(crate) const MOST_DRAIN: u64 = 1 << 12;

/// One second, in microseconds.
const LONGEST_OVERTAKING: u64 = 1_000_000;

/// A quota in the form that a word needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(super) meter: Meter,
    /// The time after which a word has no room for more: it stands still.
    longest: u64,
    /// What drains in the longest time by which one caller may overtake another between clock and word.
    pub(super) overtaken: u64,
}

impl Plan {
    fn new(meter: Meter) -> Self {
        Self {
            meter,
            longest: MOST_DRAINED / meter.units_per_us.max(1),
            overtaken: meter.units_per_us.saturating_mul(LONGEST_OVERTAKING),
        }
    }

    /// `None` when the quota needs more than one word.
    pub(crate) fn of(quota: &Quota) -> Option<Self> {
        let meter = match quota.kind() {
            AlgorithmKind::TokenBucket(it) => *it.meter(),
            AlgorithmKind::LeakyBucket(it) => *it.meter(),
            _ => return None,
        };
        (meter.units_per_us < MOST_DRAIN).then(|| Self::new(meter))
    }

    /// The word of a level of zero, so long after the limiter was made.
    #[inline]
    pub(super) fn empty_at(&self, since: u64) -> u64 {
        since.min(self.longest) * self.meter.units_per_us
    }
}

/// The current plan and the one before it, read without a lock: a reader tries again if a writer was there.
#[derive(Debug)]
pub(crate) struct Plans {
    pub(super) epoch: Micros,
    /// The plan of a limiter that was never changed, which is most of them.
    pub(super) first: Plan,
    pub(super) changes: AtomicU64,
    pub(super) resets: Resets,
    slots: [PlanWords; 2],
    /// Whether words of the plan before are forgotten.
    is_reset: AtomicU64,
}

#[derive(Debug, Default)]
struct PlanWords([AtomicU64; 4]);

impl PlanWords {
    #[inline]
    fn load(&self) -> Plan {
        let [price, drain, capacity, queue] = &self.0;
        Plan::new(Meter {
            units_per_token: price.load(Ordering::Relaxed),
            units_per_us: drain.load(Ordering::Relaxed),
            capacity: capacity.load(Ordering::Relaxed),
            queue: queue.load(Ordering::Relaxed),
        })
    }

    fn store(&self, plan: Plan) {
        let Meter { units_per_token: price, units_per_us: drain, capacity, queue } = plan.meter;
        for (word, value) in self.0.iter().zip([price, drain, capacity, queue]) {
            word.store(value, Ordering::Relaxed);
        }
    }
}

impl Plans {
    /// Plans for a word that is never used, see [`super::UNUSED`].
    pub(crate) fn unused() -> Self {
        let meter = Meter { units_per_token: 1, units_per_us: 1, capacity: 1, queue: 1 };
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
            is_reset: AtomicU64::new(0),
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
    pub(crate) fn change(&self, plan: Plan, how: CarryOver) {
        let changes = self.changes.load(Ordering::Relaxed);
        // Whoever sees a part of the new plan must also see that the one in its place is no longer current.
        fence(Ordering::Release);
        self.is_reset.store((how == CarryOver::Reset).into(), Ordering::Relaxed);
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

    /// What words mean at `now`.
    pub(crate) fn at(&self, now: Micros) -> PlansAt<'_> {
        PlansAt { plans: self, now }
    }

    /// The most that is granted at once.
    pub(crate) fn limit(&self) -> u64 {
        let Meter { units_per_token: price, capacity, .. } = self.current().1.meter;
        capacity / price
    }

    /// Answers a demand on a word that the caller has locked, by the plan that it read since; returns the word to
    /// unlock it with, and the receipt of a charge.
    pub(crate) fn decide_locked(
        &self,
        (changes, plan): (u64, Plan),
        word: u64,
        now: Micros,
        demand: Demand,
    ) -> (Decision, u64, Receipt) {
        let since = self.since_epoch(now);
        let level = self.convert(changes, &plan, word, since);
        let mut judgement = plan.meter.evaluate(level, demand);
        let (mut next, mut receipt) = (word, Receipt::default());
        if judgement.is_granted() && demand.effect == Effect::Probe {
            judgement.level = level;
        } else if judgement.is_granted() && demand.cost > 0 {
            next = generation(changes) | (plan.empty_at(since) + judgement.level);
            receipt = plan.meter.new_receipt(demand.cost, now, level, judgement.level);
        }
        (plan.meter.to_decision(judgement), next, receipt)
    }

    /// How often a key has been forgotten.
    pub(crate) fn resets_of(&self, owner: u64) -> u64 {
        self.resets.seen(owner)
    }

    fn previous(&self, changes: u64) -> Plan {
        self.slots[(changes & 1 ^ 1) as usize].load()
    }

    /// The level that a word means at `now`, in units of the current plan; `None` when that has changed meanwhile.
    pub(super) fn level(&self, changes: u64, plan: &Plan, word: u64, now: u64) -> Option<u64> {
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
        match self.is_reset.load(Ordering::Relaxed) {
            0 => plan.meter.convert(&old.meter, level),
            _ => 0,
        }
    }
}

/// What words mean at some moment.
pub(crate) struct PlansAt<'a> {
    plans: &'a Plans,
    now: Micros,
}

impl States for PlansAt<'_> {
    fn empty(&self) -> u64 {
        self.plans.empty(self.now)
    }

    fn is_spent(&self, head: u64) -> bool {
        self.plans.is_spent(head, self.now)
    }

    fn appraise(&self, cell: Cell<'_>, head: u64) -> Option<Appraised> {
        let (decision, ..) = self.plans.decide_locked(self.plans.current(), head, self.now, Demand::probe(1));
        if !decision.is_allowed() {
            cell.unlock(head);
            return None;
        }
        Some(Appraised::of(&decision, head))
    }

    fn forget(&self, owner: u64) {
        self.plans.resets.add(owner);
    }

    const IS_RANKED: bool = true;
}

/// Names the stretch of time in which receipts are good: between changes of the quota and resets of the key.
pub(super) fn settlement(changes: u64, resets: u64) -> u64 {
    changes << 32 | resets & u64::from(u32::MAX)
}

#[inline]
pub(super) fn generation(changes: u64) -> u64 {
    (changes & 1) * GENERATION
}
