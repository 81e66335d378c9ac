//! Counting in several words: any algorithm, and several quotas of one key side by side, under the cell's lock.
//!
//! ```text
//!   head   LOCK | GENERATION | the moment from which the cell says nothing
//!   body   the latest moment seen, state of the first quota, of the second, …    when all apply together
//!   body   the latest moment seen, which tier wrote it, state of that tier       when the call chooses one
//! ```
//!
//! The lock is a bit of the cell itself, held for one decision; different keys never wait for each other. A caller
//! that read the clock before another did and got the lock after it decides at the other's moment.

use super::{
    cell::{Cell, GENERATION, VALUE},
    charge::Charge,
    plan::settlement,
    resets::Resets,
    sketch::Sketch,
    table::{OutOfMemory, Table},
};
use crate::{
    fold::Fold,
    sync::{Mutex, Ordering, lock},
};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_core::{Decision, Demand, Effect, Inherit, Kind, Micros, Quota, Receipt, Words};

/// Words of a body: the latest moment it has seen, then states.
const LATEST: usize = 0;
const STATES: usize = 1;
/// Under [`Layout::Tiers`] the tier that wrote it plus one, then its state.
const TIER: usize = STATES;
const STATE_OF_TIER: usize = TIER + 1;

/// Cells for some quotas, and the quotas.
#[derive(Debug)]
pub(crate) struct Wide {
    pub(crate) table: Table,
    plan: ArcSwap<Plan>,
    changing: Mutex<()>,
    resets: Resets,
}

#[derive(Debug)]
struct Plan {
    quotas: Box<[Quota]>,
    /// Where each quota's state starts in the body.
    starts: Box<[usize]>,
    layout: Layout,
    /// How often the quotas have changed.
    changes: u64,
    /// What wrote the cells of the other generation, and how they carry over.
    previous: Option<(Box<[Quota]>, Inherit)>,
}

/// How several quotas share a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Side by side: all apply to every call.
    Together,
    /// In one place, behind a word that names the tier: each call chooses one.
    Tiers,
}

/// What a call asks of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) demand: Demand,
    pub(crate) hold: Hold,
    pub(crate) tier: usize,
}

impl Question {
    /// A plain demand of the first tier that holds nothing.
    pub(crate) fn plain(demand: Demand) -> Self {
        Self { demand, hold: Hold::Nothing, tier: 0 }
    }
}

/// Whether a concurrency quota is taken and held, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Permit,
    Nothing,
}

/// What a quota counts: tokens that time gives back, or permits that their holders do.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Counts {
    Tokens,
    Permits,
}

#[cfg(feature = "tokio")]
impl Counts {
    pub(crate) fn of(quota: &Quota) -> Self {
        if counts_permits(quota) { Self::Permits } else { Self::Tokens }
    }
}

impl Hold {
    /// What the demand is to this quota: without a permit that could give it back, a slot is only looked at.
    pub(super) fn on(self, quota: &Quota, demand: Demand) -> Demand {
        match self {
            Self::Nothing if counts_permits(quota) => Demand { effect: Effect::Probe, ..demand },
            _ => demand,
        }
    }
}

/// A cell that this thread alone may change until it is dropped.
pub(crate) struct Held<'a> {
    cell: Cell<'a>,
    head: u64,
    plan: Guard<Arc<Plan>>,
    resets: &'a Resets,
    /// The moment at which the cell is held: the caller's, or a later one that the cell has seen.
    pub(crate) now: Micros,
}

impl Wide {
    pub(crate) fn new(quotas: &[Quota], layout: Layout, keys: u64) -> Result<Self, OutOfMemory> {
        let mut starts = Vec::with_capacity(quotas.len());
        let mut width = STATES;
        for quota in quotas {
            starts.push(if layout == Layout::Tiers { STATE_OF_TIER } else { width });
            width += quota.width();
        }
        let table = Table::new(keys, Self::width(quotas, layout))?;
        let (quotas, starts) = (quotas.into(), starts.into());
        let plan = Plan { quotas, starts, layout, changes: 0, previous: None };
        Ok(Self {
            table,
            plan: ArcSwap::from_pointee(plan),
            changing: Mutex::new(()),
            resets: Resets::of_many(),
        })
    }

    /// Words that the body of a cell needs.
    pub(crate) fn width(quotas: &[Quota], layout: Layout) -> usize {
        let widths = quotas.iter().map(Quota::width);
        match layout {
            Layout::Together => STATES + widths.sum::<usize>(),
            Layout::Tiers => STATE_OF_TIER + widths.max().unwrap_or(0),
        }
    }

    /// A head that says nothing at `now`.
    pub(crate) fn empty(&self, now: Micros) -> u64 {
        self.plan.load().generation() | now.get()
    }

    /// Whether a cell says nothing any more.
    pub(crate) fn is_spent(head: u64, now: Micros) -> bool {
        head & VALUE < now.get()
    }

    /// Locks a cell at `now`; `None` when it went to another key.
    pub(crate) fn hold<'a>(&'a self, cell: Cell<'a>, now: Micros) -> Option<Held<'a>> {
        let head = cell.lock()?;
        // Read under the lock: a cell can then be behind the plan, but never ahead of it.
        let mut held = Held { cell, head, plan: self.plan.load(), resets: &self.resets, now };
        held.see(now);
        held.catch_up();
        Some(held)
    }

    pub(crate) fn quotas(&self) -> Vec<Quota> {
        self.plan.load().quotas.to_vec()
    }

    pub(crate) fn tiers(&self) -> usize {
        let plan = self.plan.load();
        if plan.layout == Layout::Tiers { plan.quotas.len() } else { 1 }
    }

    pub(crate) fn limit(&self) -> u64 {
        self.plan.load().quotas.iter().map(Quota::limit).min().unwrap_or(0)
    }

    /// Whether each of these quotas needs no more words than its place has.
    pub(crate) fn has_room_for(&self, quotas: &[Quota]) -> bool {
        let old = self.plan.load();
        quotas.len() == old.quotas.len()
            && quotas.iter().zip(&*old.quotas).all(|(new, old)| new.width() <= old.width())
    }

    /// Replaces the quotas and brings every cell over. Refused when a new one needs more words than its place has.
    pub(crate) fn change(&self, quotas: &[Quota], how: Inherit, now: Micros) -> Result<(), ()> {
        let _guard = lock(&self.changing);
        if !self.has_room_for(quotas) {
            return Err(());
        }
        let old = self.plan.load_full();
        let _still = self.table.stand_still();
        self.plan.store(Arc::new(Plan {
            quotas: quotas.into(),
            starts: old.starts.clone(),
            layout: old.layout,
            changes: old.changes + 1,
            previous: Some((old.quotas.clone(), how)),
        }));
        for cell in self.table.cells() {
            drop(self.hold(cell, now));
        }
        Ok(())
    }
}

impl Held<'_> {
    /// The stretch of time in which receipts of now are good.
    pub(crate) fn settlement(&self) -> u64 {
        settlement(self.plan.changes, self.resets.seen(self.cell.owner))
    }

    /// Time goes on, but never back.
    pub(crate) fn see(&mut self, now: Micros) {
        let latest = self.cell.body(LATEST);
        self.now = now.max(Micros::new(latest.load(Ordering::Relaxed)));
        latest.store(self.now.get(), Ordering::Relaxed);
    }

    /// Answers a question. Receipts go to `receipts`, one for each quota that was asked.
    pub(crate) fn decide(&mut self, question: Question, receipts: &mut Vec<Receipt>) -> Decision {
        let Question { demand, hold, tier } = question;
        if self.plan.layout == Layout::Tiers {
            let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
            let demand = hold.on(quota, demand);
            return self.decide_tier(demand, tier, receipts);
        }
        // One quota leaves a denied state alone by itself; with several, look at all before charging any.
        if self.plan.quotas.len() > 1 {
            let judged = self.each(Demand { effect: Effect::Probe, ..demand }, hold, receipts);
            if !judged.is_granted() {
                return judged;
            }
            receipts.clear();
        }
        self.each(demand, hold, receipts)
    }

    /// Asks every quota; all are charged or none.
    fn each(&mut self, demand: Demand, hold: Hold, receipts: &mut Vec<Receipt>) -> Decision {
        let (mut fold, now) = (Fold::default(), self.now);
        let mut spent_at = 0;
        for (quota, mut words) in self.plan.states(self.cell) {
            let step = quota.decide(&mut words, now, hold.on(quota, demand));
            spent_at = spent_at.max(now.plus(step.decision.reset_after()).get());
            receipts.push(step.receipt);
            fold.add(step.decision);
        }
        let decision = fold.finish();
        if decision.is_granted() && demand.effect == Effect::Charge {
            self.keep_until(spent_at);
        }
        decision
    }

    /// Asks one tier, with the history that the key has under another.
    fn decide_tier(&mut self, demand: Demand, tier: usize, receipts: &mut Vec<Receipt>) -> Decision {
        let Some(quota) = self.plan.quotas.get(tier) else { return Decision::unlimited() };
        let now = self.now;
        // On a copy: a denial must leave the history as the other tier wrote it.
        let mut state = self.carried(tier);
        let step = quota.decide(state.as_mut_slice(), now, demand);
        if step.receipt.cost > 0 {
            let mut words = Body { cell: self.cell, start: STATE_OF_TIER };
            state.iter().enumerate().for_each(|(index, word)| words.set(index, *word));
            self.cell.body(TIER).store(tier as u64 + 1, Ordering::Relaxed);
            self.keep_until(now.plus(step.decision.reset_after()).get());
        }
        receipts.push(step.receipt);
        step.decision.of_quota(tier)
    }

    /// What the key has used under whatever tier, as a state of this one. What that tier has forgotten is forgotten.
    fn carried(&self, tier: usize) -> Vec<u64> {
        let width = Wide::width(&self.plan.quotas, Layout::Tiers) - STATE_OF_TIER;
        let mut state: Vec<u64> = vec![0; width];
        let (Some(written), Some(quota)) = (self.plan.tier(self.cell), self.plan.quotas.get(tier)) else {
            return state;
        };
        let (words, writer) = (Body { cell: self.cell, start: STATE_OF_TIER }, &self.plan.quotas[written]);
        state.iter_mut().enumerate().for_each(|(index, word)| *word = words.get(index));
        let look = writer.decide(state.as_mut_slice(), self.now, Demand::probe(0));
        match look.decision.reset_after() {
            Micros::ZERO => state.fill(0),
            _ if written == tier => {}
            _ => quota.inherit(writer, state.as_mut_slice(), self.now, Inherit::Additive),
        }
        state
    }

    /// A copy of the state, as a question for `tier` would find it.
    pub(crate) fn sketch(&self, tier: usize) -> Sketch {
        let copy = |(quota, words): (&Quota, Body<'_>)| {
            (*quota, (0..quota.width()).map(|index| words.get(index)).collect())
        };
        let states = match self.plan.layout {
            Layout::Together => self.plan.states(self.cell).map(copy).collect(),
            Layout::Tiers => {
                let quota = self.plan.quotas.get(tier);
                quota.map(|quota| (*quota, self.carried(tier))).into_iter().collect()
            }
        };
        Sketch { at: self.now, states }
    }

    /// After a charge: for as long as before, at least.
    fn keep_until(&mut self, spent_at: u64) {
        self.head = self.plan.generation() | spent_at.max(self.head & VALUE);
    }

    /// Gives back up to `cost` of each receipt. A change of quota or tier settles what was outstanding before it,
    /// and a permit gives back only its slot where there are slots; but slots are held until they are given back.
    pub(crate) fn refund(&mut self, charge: &Charge, cost: u64) {
        let is_settled = charge.settlement != self.settlement()
            || (self.plan.layout == Layout::Tiers && self.plan.tier(self.cell) != Some(charge.tier))
            || (charge.hold == Hold::Permit && self.plan.quotas.iter().any(counts_permits));
        for ((quota, mut words), receipt) in self.plan.states(self.cell).zip(&charge.receipts) {
            if !is_settled || counts_permits(quota) {
                quota.refund(&mut words, self.now, *receipt, cost);
            }
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Forgets the key, but for permits in flight: their holders will give them back.
    pub(crate) fn reset(&mut self) {
        self.resets.add(self.cell.owner);
        for (quota, mut words) in self.plan.states(self.cell).filter(|(quota, _)| !counts_permits(quota)) {
            (0..quota.width()).for_each(|index| words.set(index, 0));
        }
        if self.plan.layout == Layout::Tiers && !self.plan.quotas.iter().any(counts_permits) {
            self.cell.body(TIER).store(0, Ordering::Relaxed);
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Writes the states of a limiter that is created now.
    pub(crate) fn create(&mut self) {
        for (quota, mut words) in self.plan.states(self.cell) {
            quota.create(&mut words, self.now);
        }
        self.head = self.plan.head(self.cell, self.now);
    }

    /// Brings a cell of the generation before over to the current quotas.
    fn catch_up(&mut self) {
        if self.head & GENERATION == self.plan.generation() {
            return;
        }
        let Some((old, how)) = &self.plan.previous else { return };
        let first = self.plan.tier(self.cell).unwrap_or(0);
        for ((quota, mut words), old) in self.plan.states(self.cell).zip(&old[first..]) {
            quota.inherit(old, &mut words, self.now, *how);
        }
        self.head = self.plan.head(self.cell, self.now);
    }
}

impl Plan {
    /// Each quota that has a state in `cell`, which the caller holds, with that state.
    fn states<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, Body<'a>)> {
        let present = match (self.layout, self.tier(cell)) {
            (Layout::Together, _) => 0..self.quotas.len(),
            (Layout::Tiers, Some(tier)) => tier..tier + 1,
            (Layout::Tiers, None) => 0..0,
        };
        present.map(move |index| (&self.quotas[index], Body { cell, start: self.starts[index] }))
    }

    /// The tier that wrote the cell last, where there are tiers.
    fn tier(&self, cell: Cell<'_>) -> Option<usize> {
        let tier = match self.layout {
            Layout::Together => return None,
            Layout::Tiers => cell.body(TIER).load(Ordering::Relaxed).checked_sub(1)?,
        };
        usize::try_from(tier).ok().filter(|tier| *tier < self.quotas.len())
    }

    /// The head that tells when the states in `cell` say nothing any more.
    fn head(&self, cell: Cell<'_>, now: Micros) -> u64 {
        let resets = self.states(cell).map(|(quota, mut words)| {
            let look = quota.decide(&mut words, now, Demand::probe(0));
            now.plus(look.decision.reset_after()).get()
        });
        self.generation() | resets.max().unwrap_or(0)
    }

    /// The generation of its cells.
    fn generation(&self) -> u64 {
        (self.changes & 1) * GENERATION
    }
}

fn counts_permits(quota: &Quota) -> bool {
    matches!(quota.kind(), Kind::Concurrency(_))
}

/// Unlocks, whatever happened while the cell was held.
impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.cell.unlock(self.head);
    }
}

/// The words of one quota's state in a cell that is held.
struct Body<'a> {
    cell: Cell<'a>,
    start: usize,
}

impl Words for Body<'_> {
    fn get(&self, index: usize) -> u64 {
        self.cell.body(self.start + index).load(Ordering::Relaxed)
    }

    fn set(&mut self, index: usize, word: u64) {
        self.cell.body(self.start + index).store(word, Ordering::Relaxed);
    }
}
