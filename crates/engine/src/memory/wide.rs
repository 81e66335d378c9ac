//! Counting in several words: any algorithm, and several quotas of one key side by side, under the cell's lock.
//!
//! ```text
//!   head   LOCK | GENERATION | the moment from which the cell says nothing
//!   body   state of the first quota, of the second, …
//! ```
//!
//! The lock is a bit of the cell itself, held for one decision; different keys never wait for each other.

use super::table::{Cell, GENERATION, OutOfMemory, Table, VALUE};
use crate::{
    fold::Fold,
    sync::{Mutex, Ordering, lock},
};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_core::{Decision, Demand, Effect, Inherit, Kind, Micros, Quota, Receipt, Words};

/// Cells for some quotas, and the quotas.
#[derive(Debug)]
pub(crate) struct Wide {
    pub(crate) table: Table,
    plan: ArcSwap<Plan>,
    changing: Mutex<()>,
}

#[derive(Debug)]
struct Plan {
    quotas: Box<[Quota]>,
    /// Where each quota's state starts in the body.
    starts: Box<[usize]>,
    generation: u64,
    /// What wrote the cells of the other generation, and how they carry over.
    previous: Option<(Box<[Quota]>, Inherit)>,
}

/// Whether a concurrency quota is taken and held, or only looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Permit,
    Nothing,
}

/// A cell that this thread alone may change until it is dropped.
pub(crate) struct Held<'a> {
    cell: Cell<'a>,
    head: u64,
    plan: Guard<Arc<Plan>>,
}

impl Wide {
    pub(crate) fn new(quotas: &[Quota], keys: u64) -> Result<Self, OutOfMemory> {
        let mut starts = Vec::with_capacity(quotas.len());
        let mut width = 0;
        for quota in quotas {
            starts.push(width);
            width += quota.width();
        }
        let plan = Plan { quotas: quotas.into(), starts: starts.into(), generation: 0, previous: None };
        let table = Table::new(keys, width)?;
        Ok(Self { table, plan: ArcSwap::from_pointee(plan), changing: Mutex::new(()) })
    }

    /// Words that the body of a cell needs.
    pub(crate) fn width(quotas: &[Quota]) -> usize {
        quotas.iter().map(Quota::width).sum()
    }

    /// A head that says nothing at `now`.
    pub(crate) fn empty(&self, now: Micros) -> u64 {
        self.plan.load().generation | now.get()
    }

    /// Whether a cell says nothing any more.
    pub(crate) fn is_spent(head: u64, now: Micros) -> bool {
        head & VALUE < now.get()
    }

    /// Locks a cell; `None` when it went to another key.
    pub(crate) fn hold<'a>(&self, cell: Cell<'a>, now: Micros) -> Option<Held<'a>> {
        let head = cell.lock()?;
        // Read under the lock: a cell can then be behind the plan, but never ahead of it.
        let mut held = Held { cell, head, plan: self.plan.load() };
        held.catch_up(now);
        Some(held)
    }

    pub(crate) fn quotas(&self) -> Vec<Quota> {
        self.plan.load().quotas.to_vec()
    }

    pub(crate) fn limit(&self) -> u64 {
        self.plan.load().quotas.iter().map(Quota::limit).min().unwrap_or(0)
    }

    /// Replaces the quotas and brings every cell over. Refused when a new one needs more words than its place has.
    pub(crate) fn change(&self, quotas: &[Quota], how: Inherit, now: Micros) -> Result<(), ()> {
        let _guard = lock(&self.changing);
        let old = self.plan.load_full();
        let fits = quotas.len() == old.quotas.len()
            && quotas.iter().zip(&*old.quotas).all(|(new, old)| new.width() <= old.width());
        if !fits {
            return Err(());
        }
        self.plan.store(Arc::new(Plan {
            quotas: quotas.into(),
            starts: old.starts.clone(),
            generation: old.generation ^ GENERATION,
            previous: Some((old.quotas.clone(), how)),
        }));
        for cell in self.table.cells() {
            drop(self.hold(cell, now));
        }
        Ok(())
    }
}

impl Held<'_> {
    /// Answers a demand on all quotas: all are charged or none. Receipts go to `receipts`, in order.
    pub(crate) fn decide(
        &mut self,
        now: Micros,
        demand: Demand,
        hold: Hold,
        receipts: &mut Vec<Receipt>,
    ) -> Decision {
        // One quota leaves a denied state alone by itself; with several, look at all before charging any.
        if self.plan.quotas.len() > 1 {
            let judged = self.each(now, Demand { effect: Effect::Probe, ..demand }, hold, receipts);
            if !judged.is_granted() {
                return judged;
            }
            receipts.clear();
        }
        self.each(now, demand, hold, receipts)
    }

    fn each(&mut self, now: Micros, demand: Demand, hold: Hold, receipts: &mut Vec<Receipt>) -> Decision {
        let mut fold = Fold::default();
        let mut spent_at = 0;
        for (quota, mut words) in self.plan.states(self.cell) {
            let looks_only = hold == Hold::Nothing && matches!(quota.kind(), Kind::Concurrency(_));
            let demand = if looks_only { Demand { effect: Effect::Probe, ..demand } } else { demand };
            let step = quota.decide(&mut words, now, demand);
            spent_at = spent_at.max(now.plus(step.decision.reset_after()).get());
            receipts.push(step.receipt);
            fold.add(step.decision);
        }
        let decision = fold.finish();
        if decision.is_granted() && demand.effect == Effect::Charge {
            self.head = self.plan.generation | spent_at;
        }
        decision
    }

    /// Gives back up to `cost` of each receipt.
    pub(crate) fn refund(&mut self, now: Micros, receipts: &[Receipt], cost: u64) {
        for ((quota, mut words), receipt) in self.plan.states(self.cell).zip(receipts) {
            quota.refund(&mut words, now, *receipt, cost);
        }
        self.head = self.plan.head(self.cell, now);
    }

    /// Forgets the key.
    pub(crate) fn reset(&mut self, now: Micros) {
        for (quota, mut words) in self.plan.states(self.cell) {
            (0..quota.width()).for_each(|index| words.set(index, 0));
        }
        self.head = self.plan.generation | now.get();
    }

    /// Writes the states of a limiter that is created now.
    pub(crate) fn create(&mut self, now: Micros) {
        for (quota, mut words) in self.plan.states(self.cell) {
            quota.create(&mut words, now);
        }
    }

    /// Brings a cell of the generation before over to the current quotas.
    fn catch_up(&mut self, now: Micros) {
        if self.head & GENERATION == self.plan.generation {
            return;
        }
        let Some((old, how)) = &self.plan.previous else { return };
        for ((quota, mut words), old) in self.plan.states(self.cell).zip(old) {
            quota.inherit(old, &mut words, now, *how);
        }
        self.head = self.plan.head(self.cell, now);
    }
}

impl Plan {
    /// Each quota with its state in `cell`, which the caller holds.
    fn states<'a>(&'a self, cell: Cell<'a>) -> impl Iterator<Item = (&'a Quota, Body<'a>)> {
        self.quotas.iter().zip(&self.starts).map(move |(quota, start)| (quota, Body { cell, start: *start }))
    }

    /// The head that tells when the states in `cell` say nothing any more.
    fn head(&self, cell: Cell<'_>, now: Micros) -> u64 {
        let resets = self.states(cell).map(|(quota, mut words)| {
            let look = quota.decide(&mut words, now, Demand::probe(0));
            now.plus(look.decision.reset_after()).get()
        });
        self.generation | resets.max().unwrap_or(0)
    }
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
