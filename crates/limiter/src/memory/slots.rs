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
    cell::{Cell, LOCK_BIT},
    multi_word::{CellRequest, SlotHold},
    table::{CellLookup, CellStates, CellTable, EvictionScore, OutOfMemory, StripeLock},
};
use crate::{
    limiter::{FullListener, Overflow},
    semaphore::HasWaiters,
    sync::{AtomicU64, Mutex, Ordering, SpinBackoff, lock},
};
use tidegate_core::{AlgorithmKind, Decision, Demand, Effect, Micros, Quota};

/// The keys of a limiter that counts permits without a lease.
#[derive(Debug)]
pub(crate) struct SlotTable {
    table: CellTable,
    limit: AtomicU64,
    quota: Mutex<Quota>,
}

/// The most that a head can count.
const IN_FLIGHT_MASK: u64 = WAITER_BIT - 1;
/// Set when somebody waits for one to be given back.
const WAITER_BIT: u64 = 1 << 31;
const OWNER_MASK: u64 = ((1 << 30) - 1) << 32;

/// Permits of one key, as proof that they are held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquiredSlots<'a> {
    head: &'a AtomicU64,
}

/// The permits of one key, which nobody else can take until it is dropped. Those who give theirs back do not wait for it.
pub(crate) struct LockedSlots<'a> {
    head: &'a AtomicU64,
}

impl<'a> LockedSlots<'a> {
    /// `None` when the cell went to another key.
    pub(crate) fn lock(cell: Cell<'a>) -> Option<Self> {
        let head = cell.head();
        let mut backoff = SpinBackoff::default();
        loop {
            let seen = head.load(Ordering::Relaxed);
            if seen & LOCK_BIT != 0 {
                backoff.pause();
            } else if seen & OWNER_MASK != owner_bits(cell.owner) {
                return None;
            } else if head
                .compare_exchange(seen, seen | LOCK_BIT, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                let grip = Self { head };
                return cell.is_owned().then_some(grip);
            }
        }
    }
}

impl Drop for LockedSlots<'_> {
    fn drop(&mut self) {
        // Not a plain store: somebody may have given a permit back meanwhile.
        self.head.fetch_and(!LOCK_BIT, Ordering::AcqRel);
    }
}

/// What came of trying to take permits in one cell.
enum AcquireAttempt<'a> {
    Acquired(AcquiredSlots<'a>, u64),
    Full(u64),
    /// The cell belongs to another key now.
    Moved,
}

impl SlotTable {
    /// Whether a quota can be counted this way.
    pub(crate) fn can_count(quota: &Quota) -> bool {
        matches!(quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_none())
            && quota.limit() <= IN_FLIGHT_MASK
    }

    pub(crate) fn new(quota: Quota, keys: u64) -> Result<Self, OutOfMemory> {
        let table = CellTable::new(keys, 0)?;
        Ok(Self { table, limit: AtomicU64::new(quota.limit()), quota: Mutex::new(quota) })
    }

    pub(crate) fn table(&self) -> &CellTable {
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
    pub(crate) fn try_acquire_one(&self, owner: u64) -> Option<Decision> {
        let near = self.table.find_fast(owner)?;
        let limit = self.limit();
        match try_acquire(near.head, owner, 1, limit, || near.is_owned()) {
            AcquireAttempt::Acquired(_, held) => Some(Decision::from_in_flight(limit, held)),
            AcquireAttempt::Full(_) | AcquireAttempt::Moved => None,
        }
    }

    /// Answers a question; permits are only taken by those who will give them back. `None` when there is no room to
    /// count the key.
    pub(crate) fn decide(
        &self,
        owner: u64,
        request: CellRequest,
    ) -> Option<(Decision, Option<AcquiredSlots<'_>>)> {
        let CellRequest { demand, hold, .. } = request;
        let takes = hold == SlotHold::Permit && demand.effect == Effect::Charge && demand.cost > 0;
        if !takes {
            let held = self.table.find(owner).map_or(0, |cell| cell_in_flight(&cell));
            return Some((self.evaluate(held, Demand { effect: Effect::Probe, ..demand }), None));
        }
        let mut backoff = SpinBackoff::default();
        loop {
            let CellLookup::Own(cell) = self.locate(owner, StripeLock::Unlocked) else { return None };
            match try_acquire(cell.head(), owner, demand.cost, self.limit(), || cell.is_owned()) {
                AcquireAttempt::Acquired(taken, held) => {
                    return Some((Decision::from_in_flight(self.limit(), held), Some(taken)));
                }
                AcquireAttempt::Full(held) => {
                    let answer = self.evaluate(held, Demand { effect: Effect::Probe, ..demand });
                    // Unless the limit has just grown.
                    if !answer.is_granted() {
                        return Some((answer, None));
                    }
                }
                // The owner can be seen before the head that belongs to it.
                AcquireAttempt::Moved => backoff.pause(),
            }
        }
    }

    /// Has the next to give a permit of this key back tell so; or finds that `cost` is free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> HasWaiters {
        let Some(cell) = self.table.find(owner) else { return HasWaiters::No };
        let mut seen = cell.head().load(Ordering::Relaxed);
        loop {
            let is_full = (seen & IN_FLIGHT_MASK) + cost > self.limit();
            if seen & LOCK_BIT != 0 || seen & OWNER_MASK != owner_bits(owner) || !is_full || !cell.is_owned()
            {
                return HasWaiters::No;
            }
            match cell.head().compare_exchange_weak(
                seen,
                seen | WAITER_BIT,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return HasWaiters::Yes,
                Err(now) => seen = now,
            }
        }
    }

    /// Gives permits of a key back.
    pub(crate) fn release(&self, owner: u64, cost: u64) -> HasWaiters {
        match self.table.find(owner) {
            Some(cell) => AcquiredSlots { head: cell.head() }.release(cost),
            None => HasWaiters::No,
        }
    }

    /// The cell of a key, if there is room for it.
    pub(crate) fn locate(&self, owner: u64, stripe: StripeLock) -> CellLookup<'_> {
        self.table.find_or_insert(owner, stripe, Overflow::Deny, &EmptySlots { owner })
    }

    /// Who is told when a key finds no room.
    pub(crate) fn set_listener(&mut self, listener: FullListener) {
        self.table.set_listener(listener);
    }

    /// What a cell says to somebody who takes nothing.
    pub(crate) fn peek(&self, cell: &Cell<'_>, demand: Demand) -> Decision {
        self.evaluate(cell_in_flight(cell), Demand { effect: Effect::Probe, ..demand })
    }

    /// Takes permits that nobody else can take meanwhile, or says what it would; and how many were taken.
    pub(crate) fn decide_locked(&self, locked: &LockedSlots<'_>, demand: Demand) -> (Decision, u64) {
        let held = locked.head.load(Ordering::Acquire) & IN_FLIGHT_MASK;
        if demand.effect == Effect::Probe || demand.cost == 0 {
            return (self.evaluate(held, Demand { effect: Effect::Probe, ..demand }), 0);
        }
        // Whoever charges has looked, and since then it can only have become less.
        let before = locked.head.fetch_add(demand.cost, Ordering::AcqRel);
        (Decision::from_in_flight(self.limit(), (before & IN_FLIGHT_MASK) + demand.cost), demand.cost)
    }

    /// How many permits a key holds.
    pub(crate) fn in_flight(&self, owner: u64) -> u64 {
        self.table.find(owner).map_or(0, |cell| cell_in_flight(&cell))
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

    fn evaluate(&self, held: u64, demand: Demand) -> Decision {
        let mut words = [held];
        self.quota().decide(words.as_mut_slice(), Micros::ZERO, demand).decision
    }
}

impl AcquiredSlots<'_> {
    /// Gives permits back.
    #[inline]
    pub(crate) fn release(self, cost: u64) -> HasWaiters {
        let before = self.head.fetch_sub(cost, Ordering::AcqRel);
        if before & WAITER_BIT == 0 {
            return HasWaiters::No;
        }
        // Cleared before those who wait are told: who then finds nothing sets it again. If the cell has gone to another
        // key meanwhile, the bit is of those who wait for that one.
        let is_still_ours = |seen: u64| seen & (LOCK_BIT | OWNER_MASK) == before & OWNER_MASK;
        let mut seen = self.head.load(Ordering::Relaxed);
        while is_still_ours(seen)
            && let Err(now) =
                self.head.compare_exchange_weak(seen, seen & !WAITER_BIT, Ordering::AcqRel, Ordering::Relaxed)
        {
            seen = now;
        }
        HasWaiters::Yes
    }
}

#[inline]
fn try_acquire<'a>(
    head: &'a AtomicU64,
    owner: u64,
    cost: u64,
    limit: u64,
    is_ours: impl Fn() -> bool,
) -> AcquireAttempt<'a> {
    let mut backoff = SpinBackoff::default();
    let mut seen = head.load(Ordering::Relaxed);
    loop {
        if seen & LOCK_BIT != 0 {
            backoff.pause();
            seen = head.load(Ordering::Relaxed);
        } else if seen & OWNER_MASK != owner_bits(owner) {
            return AcquireAttempt::Moved;
        } else if cost > limit || seen & IN_FLIGHT_MASK > limit - cost {
            return AcquireAttempt::Full(seen & IN_FLIGHT_MASK);
        } else {
            match head.compare_exchange_weak(seen, seen + cost, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if is_ours() => {
                    return AcquireAttempt::Acquired(AcquiredSlots { head }, (seen & IN_FLIGHT_MASK) + cost);
                }
                Ok(_) => {
                    head.fetch_sub(cost, Ordering::AcqRel);
                    return AcquireAttempt::Moved;
                }
                Err(now) => seen = now,
            }
        }
    }
}

/// The low ones: keys of one group share the high ones.
fn owner_bits(owner: u64) -> u64 {
    owner << 32 & OWNER_MASK
}

/// Whether a head says nothing any more.
pub(super) fn is_expired(head: u64) -> bool {
    head & IN_FLIGHT_MASK == 0
}

/// What a key starts with that holds nothing.
struct EmptySlots {
    owner: u64,
}

impl CellStates for EmptySlots {
    fn empty_head(&self) -> u64 {
        owner_bits(self.owner)
    }

    fn is_expired(&self, head: u64) -> bool {
        is_expired(head)
    }

    /// Permits are given back by their holders alone.
    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore> {
        cell.unlock(head);
        None
    }

    fn on_evict(&self, _: u64) {}

    const IS_RANKED: bool = false;
}

/// A key whose cell has gone to another holds nothing.
fn cell_in_flight(cell: &Cell<'_>) -> u64 {
    let head = cell.head().load(Ordering::Acquire);
    if head & OWNER_MASK == owner_bits(cell.owner) { head & IN_FLIGHT_MASK } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn replaced_key_holds_no_permits() {
        let slots = SlotTable::new("1 at once".parse().unwrap(), 1).unwrap();
        let CellLookup::Own(cell) = slots.locate(1, StripeLock::Unlocked) else { panic!("no room") };
        let others = (2..).take_while(|_| cell.is_owned());
        let permit = CellRequest { hold: SlotHold::Permit, ..CellRequest::new(Demand::new(1)) };
        others.for_each(|other| assert!(slots.decide(other, permit).unwrap().1.is_some()));
        assert_eq!(cell.head().load(Ordering::Relaxed) & IN_FLIGHT_MASK, 1, "another key's");
        assert!(slots.peek(&cell, Demand::probe(1)).is_allowed());
    }
}
