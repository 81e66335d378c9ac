//! Permits of many keys, each key's in the head of its cell: taking one and giving it back is one atomic step each, and
//! no clock is read.
//!
//! ```text
//!   63   62   61 ──────── 32   31       30 ───────── 0
//!   LOCK  0   of the owner     AWAITED  permits that are held
//! ```
//!
//! A cell is reused when it holds nothing. Whoever saw it before that must not count in it for another key: the bits of
//! the owner make its swap fail, and where two owners share them, a second look does.

use super::{
    cell::{Cell, LOCK},
    table::{Appraised, OutOfMemory, Place, States, Stripe, Table},
    wide::{Hold, Question},
};
use crate::{
    limiter::{FullListener, Overflow},
    slots::Awaited,
    sync::{AtomicU64, Backoff, Mutex, Ordering, lock},
};
use tidegate_core::{AlgorithmKind, Decision, Demand, Effect, Micros, Quota};

/// The keys of a limiter that counts permits without a lease.
#[derive(Debug)]
pub(crate) struct SlotTable {
    table: Table,
    limit: AtomicU64,
    quota: Mutex<Quota>,
}

/// The most that a head can count.
const HELD: u64 = AWAITED - 1;
/// Set when somebody waits for one to be given back.
const AWAITED: u64 = 1 << 31;
const OWNER: u64 = ((1 << 30) - 1) << 32;

/// Permits of one key, as proof that they are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<'a> {
    head: &'a AtomicU64,
}

/// The permits of one key, which nobody else can take until it is dropped. Those who give theirs back do not wait for it.
pub(crate) struct SlotGrip<'a> {
    head: &'a AtomicU64,
}

impl<'a> SlotGrip<'a> {
    /// `None` when the cell went to another key.
    pub(crate) fn of(cell: Cell<'a>) -> Option<Self> {
        let head = cell.head();
        let mut backoff = Backoff::default();
        loop {
            let seen = head.load(Ordering::Relaxed);
            if seen & LOCK != 0 {
                backoff.pause();
            } else if seen & OWNER != bits_of(cell.owner) {
                return None;
            } else if head.compare_exchange(seen, seen | LOCK, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                let grip = Self { head };
                return cell.is_ours().then_some(grip);
            }
        }
    }
}

impl Drop for SlotGrip<'_> {
    fn drop(&mut self) {
        // Not a plain store: somebody may have given a permit back meanwhile.
        self.head.fetch_and(!LOCK, Ordering::AcqRel);
    }
}

/// What came of trying to take permits in one cell.
enum Attempt<'a> {
    Taken(Taken<'a>, u64),
    Full(u64),
    /// The cell belongs to another key now.
    Moved,
}

impl SlotTable {
    /// Whether a quota can be counted this way.
    pub(crate) fn can_count(quota: &Quota) -> bool {
        matches!(quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_none())
            && quota.limit() <= HELD
    }

    pub(crate) fn new(quota: Quota, keys: u64) -> Result<Self, OutOfMemory> {
        let table = Table::new(keys, 0)?;
        Ok(Self { table, limit: AtomicU64::new(quota.limit()), quota: Mutex::new(quota) })
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn quota(&self) -> Quota {
        *lock(&self.quota)
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Takes one permit, by the shortest way; `None` if the key has no cell nearby or is at its limit.
    #[inline]
    pub(crate) fn try_take_one(&self, owner: u64) -> Option<Decision> {
        let near = self.table.nearby(owner)?;
        let limit = self.limit();
        match try_take(near.head, owner, 1, limit, || near.is_ours()) {
            Attempt::Taken(_, held) => Some(Decision::from_in_flight(limit, held)),
            Attempt::Full(_) | Attempt::Moved => None,
        }
    }

    /// Answers a question; permits are only taken by those who will give them back. `None` when there is no room to
    /// count the key.
    pub(crate) fn decide(&self, owner: u64, question: Question) -> Option<(Decision, Option<Taken<'_>>)> {
        let Question { demand, hold, .. } = question;
        let takes = hold == Hold::Permit && demand.effect == Effect::Charge && demand.cost > 0;
        if !takes {
            let held = self.table.find(owner).map_or(0, |cell| held_in(&cell));
            return Some((self.answer(held, Demand { effect: Effect::Probe, ..demand }), None));
        }
        let mut backoff = Backoff::default();
        loop {
            let Place::Own(cell) = self.spot(owner, Stripe::Free) else { return None };
            match try_take(cell.head(), owner, demand.cost, self.limit(), || cell.is_ours()) {
                Attempt::Taken(taken, held) => {
                    return Some((Decision::from_in_flight(self.limit(), held), Some(taken)));
                }
                Attempt::Full(held) => {
                    let answer = self.answer(held, Demand { effect: Effect::Probe, ..demand });
                    // Unless the limit has just grown.
                    if !answer.is_granted() {
                        return Some((answer, None));
                    }
                }
                // The owner can be seen before the head that belongs to it.
                Attempt::Moved => backoff.pause(),
            }
        }
    }

    /// Has the next to give a permit of this key back tell so; or finds that `cost` is free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> Awaited {
        let Some(cell) = self.table.find(owner) else { return Awaited::No };
        let mut seen = cell.head().load(Ordering::Relaxed);
        loop {
            let is_full = (seen & HELD) + cost > self.limit();
            if seen & LOCK != 0 || seen & OWNER != bits_of(owner) || !is_full || !cell.is_ours() {
                return Awaited::No;
            }
            match cell.head().compare_exchange_weak(seen, seen | AWAITED, Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return Awaited::Yes,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives permits of a key back.
    pub(crate) fn give_back(&self, owner: u64, cost: u64) -> Awaited {
        match self.table.find(owner) {
            Some(cell) => Taken { head: cell.head() }.give_back(cost),
            None => Awaited::No,
        }
    }

    /// The cell of a key, if there is room for it.
    pub(crate) fn spot(&self, owner: u64, stripe: Stripe) -> Place<'_> {
        self.table.find_or_insert(owner, stripe, Overflow::Deny, &Unheld { owner })
    }

    /// Who is told when a key finds no room.
    pub(crate) fn listen(&mut self, listener: FullListener) {
        self.table.listen(listener);
    }

    /// What a cell says to somebody who takes nothing.
    pub(crate) fn look(&self, cell: &Cell<'_>, demand: Demand) -> Decision {
        self.answer(held_in(cell), Demand { effect: Effect::Probe, ..demand })
    }

    /// Takes permits that nobody else can take meanwhile, or says what it would; and how many were taken.
    pub(crate) fn decide_gripped(&self, grip: &SlotGrip<'_>, demand: Demand) -> (Decision, u64) {
        let held = grip.head.load(Ordering::Acquire) & HELD;
        if demand.effect == Effect::Probe || demand.cost == 0 {
            return (self.answer(held, Demand { effect: Effect::Probe, ..demand }), 0);
        }
        // Whoever charges has looked, and since then it can only have become less.
        let before = grip.head.fetch_add(demand.cost, Ordering::AcqRel);
        (Decision::from_in_flight(self.limit(), (before & HELD) + demand.cost), demand.cost)
    }

    /// How many permits a key holds.
    pub(crate) fn held(&self, owner: u64) -> u64 {
        self.table.find(owner).map_or(0, |cell| held_in(&cell))
    }

    /// Replaces the limit. What is held stays held.
    pub(crate) fn change(&self, quota: Quota) -> Result<(), ()> {
        if !Self::can_count(&quota) {
            return Err(());
        }
        let mut current = lock(&self.quota);
        *current = quota;
        self.limit.store(quota.limit(), Ordering::Release);
        Ok(())
    }

    fn answer(&self, held: u64, demand: Demand) -> Decision {
        let mut words = [held];
        self.quota().decide(words.as_mut_slice(), Micros::ZERO, demand).decision
    }
}

impl Taken<'_> {
    /// Gives permits back.
    #[inline]
    pub(crate) fn give_back(self, cost: u64) -> Awaited {
        let before = self.head.fetch_sub(cost, Ordering::AcqRel);
        if before & AWAITED == 0 {
            return Awaited::No;
        }
        // Cleared before those who wait are told: who then finds nothing sets it again. If the cell has gone to another
        // key meanwhile, the bit is of those who wait for that one.
        let is_still_ours = |seen: u64| seen & (LOCK | OWNER) == before & OWNER;
        let mut seen = self.head.load(Ordering::Relaxed);
        while is_still_ours(seen)
            && let Err(now) =
                self.head.compare_exchange_weak(seen, seen & !AWAITED, Ordering::AcqRel, Ordering::Relaxed)
        {
            seen = now;
        }
        Awaited::Yes
    }
}

#[inline]
fn try_take<'a>(
    head: &'a AtomicU64,
    owner: u64,
    cost: u64,
    limit: u64,
    is_ours: impl Fn() -> bool,
) -> Attempt<'a> {
    let mut backoff = Backoff::default();
    let mut seen = head.load(Ordering::Relaxed);
    loop {
        if seen & LOCK != 0 {
            backoff.pause();
            seen = head.load(Ordering::Relaxed);
        } else if seen & OWNER != bits_of(owner) {
            return Attempt::Moved;
        } else if cost > limit || seen & HELD > limit - cost {
            return Attempt::Full(seen & HELD);
        } else {
            match head.compare_exchange_weak(seen, seen + cost, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if is_ours() => return Attempt::Taken(Taken { head }, (seen & HELD) + cost),
                Ok(_) => {
                    head.fetch_sub(cost, Ordering::AcqRel);
                    return Attempt::Moved;
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// The low ones: keys of one group share the high ones.
fn bits_of(owner: u64) -> u64 {
    owner << 32 & OWNER
}

/// Whether a head says nothing any more.
pub(super) fn is_spent(head: u64) -> bool {
    head & HELD == 0
}

/// What a key starts with that holds nothing.
struct Unheld {
    owner: u64,
}

impl States for Unheld {
    fn empty(&self) -> u64 {
        bits_of(self.owner)
    }

    fn is_spent(&self, head: u64) -> bool {
        is_spent(head)
    }

    /// Permits are given back by their holders alone.
    fn appraise(&self, cell: Cell<'_>, head: u64) -> Option<Appraised> {
        cell.unlock(head);
        None
    }

    fn forget(&self, _: u64) {}

    const IS_RANKED: bool = false;
}

/// A key whose cell has gone to another holds nothing.
fn held_in(cell: &Cell<'_>) -> u64 {
    let head = cell.head().load(Ordering::Acquire);
    if head & OWNER == bits_of(cell.owner) { head & HELD } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_key_whose_cell_went_to_another_holds_nothing() {
        let slots = SlotTable::new("1 at once".parse().unwrap(), 1).unwrap();
        let Place::Own(cell) = slots.spot(1, Stripe::Free) else { panic!("no room") };
        let others = (2..).take_while(|_| cell.is_ours());
        let permit = Question { hold: Hold::Permit, ..Question::plain(Demand::new(1)) };
        others.for_each(|other| assert!(slots.decide(other, permit).unwrap().1.is_some()));
        assert_eq!(cell.head().load(Ordering::Relaxed) & HELD, 1, "another key's");
        assert!(slots.look(&cell, Demand::probe(1)).is_allowed());
    }
}
