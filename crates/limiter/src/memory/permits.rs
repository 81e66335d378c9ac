//! Permits of many keys, counted in the heads of their cells: acquiring and releasing one is an atomic operation each, and
//! no clock is read.
//!
//! ```text
//!   63   62   61 ──────── 32   31       30 ───────── 0
//!   LOCK  0   owner bits       WAITER   permits in flight
//! ```
//!
//! A cell is reused when it holds no permits. A thread that read it earlier must not count in it for another key: the owner
//! bits make its compare-and-swap fail, and for two owners with the same bits a second check does.

use super::{
    cell::{Cell, LOCK_BIT},
    multi_word::{CellRequest, PermitHold},
    table::{CellLookup, CellStates, CellTable, EvictionScore, OutOfMemory, StripeLock},
};
use crate::{
    limiter::{Overflow, TableFullListener},
    semaphore::HasWaiters,
    sync::{AtomicU64, Mutex, Ordering, SpinBackoff, lock},
};
use tidegate_core::{AlgorithmKind, Decision, Demand, Effect, Micros, Quota};

/// The keys of a limiter that counts permits without a lease.
#[derive(Debug)]
pub(crate) struct PermitTable {
    table: CellTable,
    limit: AtomicU64,
    quota: Mutex<Quota>,
}

/// The maximum count of a head.
const IN_FLIGHT_MASK: u64 = WAITER_BIT - 1;
/// Set while a caller waits for a release.
const WAITER_BIT: u64 = 1 << 31;
const OWNER_MASK: u64 = ((1 << 30) - 1) << 32;

/// Acquired permits of one key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcquiredPermits<'a> {
    head: &'a AtomicU64,
}

/// The locked permits of one key: until drop no other thread can acquire any. Releases do not wait for the lock.
pub(crate) struct LockedPermits<'a> {
    head: &'a AtomicU64,
}

impl<'a> LockedPermits<'a> {
    /// `None` if the cell was reassigned to another key.
    pub(crate) fn lock(cell: Cell<'a>) -> Option<Self> {
        let head = cell.head();
        let mut backoff = SpinBackoff::default();
        loop {
            let current = head.load(Ordering::Relaxed);
            if current & LOCK_BIT != 0 {
                backoff.pause();
            } else if current & OWNER_MASK != owner_bits(cell.owner) {
                return None;
            } else if head
                .compare_exchange(current, current | LOCK_BIT, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                let locked = Self { head };
                return cell.is_owned().then_some(locked);
            }
        }
    }
}

impl Drop for LockedPermits<'_> {
    fn drop(&mut self) {
        // Not a plain store: a permit may have been released meanwhile.
        self.head.fetch_and(!LOCK_BIT, Ordering::AcqRel);
    }
}

/// The result of acquiring permits in one cell.
enum AcquireAttempt<'a> {
    Acquired(AcquiredPermits<'a>, u64),
    LimitReached(u64),
    /// The cell was reassigned to another key.
    Reassigned,
}

impl PermitTable {
    /// Whether this table can count a quota.
    pub(crate) fn can_count(quota: &Quota) -> bool {
        matches!(quota.kind(), AlgorithmKind::Concurrency(concurrency) if concurrency.lease().is_none())
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

    /// Acquires one permit on the fast path; `None` if the key is not in its first group of cells or is at its limit.
    #[inline]
    pub(crate) fn try_acquire_one(&self, owner: u64) -> Option<Decision> {
        let cell = self.table.find_fast(owner)?;
        let limit = self.limit();
        match try_acquire(cell.head, owner, 1, limit, || cell.is_owned()) {
            AcquireAttempt::Acquired(_, in_flight) => Some(Decision::from_in_flight(limit, in_flight)),
            AcquireAttempt::LimitReached(_) | AcquireAttempt::Reassigned => None,
        }
    }

    /// Decides a request. Permits are acquired only if the caller can release them. `None` if the table is full.
    pub(crate) fn decide(
        &self,
        owner: u64,
        request: CellRequest,
    ) -> Option<(Decision, Option<AcquiredPermits<'_>>)> {
        let CellRequest { demand, hold, .. } = request;
        let takes = hold == PermitHold::Permit && demand.effect == Effect::Charge && demand.cost > 0;
        if !takes {
            let in_flight = self.table.find(owner).map_or(0, |cell| cell_in_flight(&cell));
            return Some((self.evaluate(in_flight, Demand { effect: Effect::Peek, ..demand }), None));
        }
        let mut backoff = SpinBackoff::default();
        loop {
            let CellLookup::Own(cell) = self.locate(owner, StripeLock::Unlocked) else { return None };
            match try_acquire(cell.head(), owner, demand.cost, self.limit(), || cell.is_owned()) {
                AcquireAttempt::Acquired(taken, in_flight) => {
                    return Some((Decision::from_in_flight(self.limit(), in_flight), Some(taken)));
                }
                AcquireAttempt::LimitReached(in_flight) => {
                    let decision = self.evaluate(in_flight, Demand { effect: Effect::Peek, ..demand });
                    // Retry if the limit has just been raised.
                    if !decision.is_granted() {
                        return Some((decision, None));
                    }
                }
                // The owner word can be visible before the head that belongs to it.
                AcquireAttempt::Reassigned => backoff.pause(),
            }
        }
    }

    /// Makes the next release of a permit of this key report a waiter. Returns `No` if `cost` is free already.
    pub(crate) fn await_release(&self, owner: u64, cost: u64) -> HasWaiters {
        let Some(cell) = self.table.find(owner) else { return HasWaiters::No };
        let mut current = cell.head().load(Ordering::Relaxed);
        loop {
            let is_full = (current & IN_FLIGHT_MASK) + cost > self.limit();
            if current & LOCK_BIT != 0
                || current & OWNER_MASK != owner_bits(owner)
                || !is_full
                || !cell.is_owned()
            {
                return HasWaiters::No;
            }
            match cell.head().compare_exchange_weak(
                current,
                current | WAITER_BIT,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return HasWaiters::Yes,
                Err(now) => current = now,
            }
        }
    }

    /// Releases permits of a key.
    pub(crate) fn release(&self, owner: u64, cost: u64) -> HasWaiters {
        match self.table.find(owner) {
            Some(cell) => AcquiredPermits { head: cell.head() }.release(cost),
            None => HasWaiters::No,
        }
    }

    /// The cell of a key, unless the table is full.
    pub(crate) fn locate(&self, owner: u64, stripe: StripeLock) -> CellLookup<'_> {
        self.table.find_or_insert(owner, stripe, Overflow::Deny, &EmptyPermits { owner })
    }

    /// Sets the callback of a full table.
    pub(crate) fn set_listener(&mut self, listener: TableFullListener) {
        self.table.set_listener(listener);
    }

    /// The decision of a cell, without acquiring.
    pub(crate) fn peek(&self, cell: &Cell<'_>, demand: Demand) -> Decision {
        self.evaluate(cell_in_flight(cell), Demand { effect: Effect::Peek, ..demand })
    }

    /// Acquires permits in a locked cell, or probes; returns the decision and the number of acquired permits.
    pub(crate) fn decide_locked(&self, locked: &LockedPermits<'_>, demand: Demand) -> (Decision, u64) {
        let in_flight = locked.head.load(Ordering::Acquire) & IN_FLIGHT_MASK;
        if demand.effect == Effect::Peek || demand.cost == 0 {
            return (self.evaluate(in_flight, Demand { effect: Effect::Peek, ..demand }), 0);
        }
        // A probe under the same lock granted this, and since then the count can only have decreased.
        let before = locked.head.fetch_add(demand.cost, Ordering::AcqRel);
        (Decision::from_in_flight(self.limit(), (before & IN_FLIGHT_MASK) + demand.cost), demand.cost)
    }

    /// The number of permits that a key holds.
    pub(crate) fn in_flight(&self, owner: u64) -> u64 {
        self.table.find(owner).map_or(0, |cell| cell_in_flight(&cell))
    }

    /// Replaces the limit. Permits in use stay valid.
    pub(crate) fn change(&self, quota: Quota) -> Result<(), ()> {
        if !Self::can_count(&quota) {
            return Err(());
        }
        let mut current = lock(&self.quota);
        *current = quota;
        self.limit.store(quota.limit(), Ordering::Release);
        Ok(())
    }

    fn evaluate(&self, in_flight: u64, demand: Demand) -> Decision {
        let mut state = [in_flight];
        self.quota().decide(state.as_mut_slice(), Micros::ZERO, demand).decision
    }
}

impl AcquiredPermits<'_> {
    /// Releases permits.
    #[inline]
    pub(crate) fn release(self, cost: u64) -> HasWaiters {
        let before = self.head.fetch_sub(cost, Ordering::AcqRel);
        if before & WAITER_BIT == 0 {
            return HasWaiters::No;
        }
        // Cleared before the waiters are woken: a waiter that finds no permit sets it again. If the cell was reassigned
        // meanwhile, the bit belongs to the waiters of the other key.
        let is_same_owner = |current: u64| current & (LOCK_BIT | OWNER_MASK) == before & OWNER_MASK;
        let mut current = self.head.load(Ordering::Relaxed);
        while is_same_owner(current)
            && let Err(now) = self.head.compare_exchange_weak(
                current,
                current & !WAITER_BIT,
                Ordering::AcqRel,
                Ordering::Relaxed,
            )
        {
            current = now;
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
    is_owned: impl Fn() -> bool,
) -> AcquireAttempt<'a> {
    let mut backoff = SpinBackoff::default();
    let mut current = head.load(Ordering::Relaxed);
    loop {
        if current & LOCK_BIT != 0 {
            backoff.pause();
            current = head.load(Ordering::Relaxed);
        } else if current & OWNER_MASK != owner_bits(owner) {
            return AcquireAttempt::Reassigned;
        } else if cost > limit || current & IN_FLIGHT_MASK > limit - cost {
            return AcquireAttempt::LimitReached(current & IN_FLIGHT_MASK);
        } else {
            match head.compare_exchange_weak(current, current + cost, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if is_owned() => {
                    return AcquireAttempt::Acquired(
                        AcquiredPermits { head },
                        (current & IN_FLIGHT_MASK) + cost,
                    );
                }
                Ok(_) => {
                    head.fetch_sub(cost, Ordering::AcqRel);
                    return AcquireAttempt::Reassigned;
                }
                Err(now) => current = now,
            }
        }
    }
}

/// The low bits of the owner: keys of one group share the high ones.
fn owner_bits(owner: u64) -> u64 {
    owner << 32 & OWNER_MASK
}

/// Whether a head holds no permits, so that its cell can be reused.
pub(super) fn is_expired(head: u64) -> bool {
    head & IN_FLIGHT_MASK == 0
}

/// The initial state of a key: no permits.
struct EmptyPermits {
    owner: u64,
}

impl CellStates for EmptyPermits {
    fn empty_head(&self) -> u64 {
        owner_bits(self.owner)
    }

    fn is_expired(&self, head: u64) -> bool {
        is_expired(head)
    }

    /// Keys with permits are never evicted: only the holders release them.
    fn score(&self, cell: Cell<'_>, head: u64) -> Option<EvictionScore> {
        cell.unlock(head);
        None
    }

    fn on_evict(&self, _: u64) {}

    const IS_RANKED: bool = false;
}

/// Zero if the cell was reassigned to another key.
fn cell_in_flight(cell: &Cell<'_>) -> u64 {
    let head = cell.head().load(Ordering::Acquire);
    if head & OWNER_MASK == owner_bits(cell.owner) { head & IN_FLIGHT_MASK } else { 0 }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn replaced_key_holds_no_permits() {
        let slots = PermitTable::new("1 at once".parse().unwrap(), 1).unwrap();
        let CellLookup::Own(cell) = slots.locate(1, StripeLock::Unlocked) else { panic!("table full") };
        let others = (2..).take_while(|_| cell.is_owned());
        let permit = CellRequest { hold: PermitHold::Permit, ..CellRequest::new(Demand::new(1)) };
        others.for_each(|other| assert!(slots.decide(other, permit).unwrap().1.is_some()));
        assert_eq!(cell.head().load(Ordering::Relaxed) & IN_FLIGHT_MASK, 1, "the permit of another key");
        assert!(slots.peek(&cell, Demand::peek(1)).is_allowed());
    }
}
