//! Explores the interleavings of two or three threads in the smallest possible table: two cells, one shared cell.
//!
//! `scripts/test loom` runs them with up to three preemptions, or `LOOM_MAX_PREEMPTIONS`.

use super::{
    batch::{decide_batch, reserve_batch},
    charge::CellCharge,
    key_table::{CellRef, KeyTable},
    multi_word::{CellRequest, PermitHold, StateLayout},
    permits::PermitTable,
    table::StripeLock,
};
use crate::{
    clock::Clock,
    limiter::{Capacity, LimiterBuilder, LocalCheck, MemoryLimiter, Overflow},
    semaphore::HasWaiters,
    store::QuotaSelection,
};
use loom::{sync::Arc, thread};
use tidegate_core::{CarryOver, Demand, Micros, Quota};

/// One per 10 µs, in one word and in several.
const QUOTAS: [&str; 2] = ["1 per 10us", "1 per 10us sliding-log"];

// Bob and Carl prefer the same cell, and are in different stripes.
const ALICE: u64 = 0x1000_0000_0000_0000;
const BOB: u64 = 0x5000_0000_0000_0003;
const CARL: u64 = 0x9000_0000_0000_0001;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 20_000;
    builder.check(model);
}

fn key_table(quota: &str) -> Arc<KeyTable> {
    let quota = quota.parse().unwrap();
    Arc::new(KeyTable::new(&[quota], StateLayout::All, 1, Micros::ZERO, &[]).unwrap())
}

fn clock(at: u64) -> Clock {
    let (clock, manual) = Clock::manual();
    manual.set(Micros::new(at));
    clock
}

fn check(key_table: &KeyTable, key: u64, at: u64) -> bool {
    key_table.check(key, &clock(at), 1, Overflow::Share).is_allowed()
}

fn remaining(key_table: &KeyTable, key: u64, at: u64) -> u64 {
    let peek = CellRequest::new(Demand::peek(0));
    key_table.decide(key, &clock(at), peek, Overflow::Share).remaining()
}

fn spawn_with(
    key_table: &Arc<KeyTable>,
    work: impl Fn(&KeyTable) -> bool + 'static,
) -> thread::JoinHandle<bool> {
    let key_table = key_table.clone();
    thread::spawn(move || work(&key_table))
}

#[test]
fn loom_new_key_gets_one_cell() {
    for quota in QUOTAS {
        explore(move || {
            let key_table = key_table(quota);
            let other = spawn_with(&key_table, |key_table| check(key_table, ALICE, 5));
            let ours = check(&key_table, ALICE, 5);
            assert!(ours ^ other.join().unwrap(), "exactly one is admitted");
            assert_eq!(key_table.table().used(), 1);
        });
    }
}

/// Two new keys compete for the last cell: one gets it, the other uses the shared one.
#[test]
fn loom_last_cell_goes_to_one_of_two_keys() {
    // At time zero a new cell is indistinguishable from an unused one.
    for (quota, at) in [(QUOTAS[0], 0), (QUOTAS[0], 5), (QUOTAS[1], 0), (QUOTAS[1], 5)] {
        explore(move || {
            let key_table = key_table(quota);
            assert!(check(&key_table, CARL, at));
            let other = spawn_with(&key_table, move |key_table| check(key_table, BOB, at));
            assert!(check(&key_table, ALICE, at) & other.join().unwrap());
            assert_eq!(key_table.table().used(), 2);
            let denied = [ALICE, BOB, CARL].map(|key| !check(&key_table, key, at + 1));
            assert_eq!(denied, [true; 3]);
        });
    }
}

/// At the instant at which a cell expires, its word equals that of a new key: it must not be reused yet.
#[test]
fn loom_cell_is_not_reused_at_expiry_instant() {
    for quota in QUOTAS {
        explore(move || {
            let key_table = key_table(quota);
            assert!(check(&key_table, ALICE, 1) && check(&key_table, CARL, 1));
            let other = spawn_with(&key_table, |key_table| check(key_table, BOB, 11));
            assert!(check(&key_table, CARL, 11) & other.join().unwrap());
            assert!(!check(&key_table, CARL, 12) && !check(&key_table, BOB, 12));
        });
    }
}

/// Both cells have expired. One thread returns to its own cell, another takes it over.
#[test]
fn loom_expired_cell_goes_to_one_of_two_keys() {
    for quota in QUOTAS {
        explore(move || {
            let key_table = key_table(quota);
            assert!(check(&key_table, ALICE, 1) && check(&key_table, CARL, 1));
            let other = spawn_with(&key_table, |key_table| check(key_table, BOB, 20));
            assert!(check(&key_table, CARL, 20) & other.join().unwrap(), "both cells have expired");
            assert!(!check(&key_table, CARL, 21) && !check(&key_table, BOB, 21), "both charges are stored");
            assert_eq!(key_table.table().overflowed(), 0);
        });
    }
}

/// A key without a cell is charged in the shared cell, while the same key gets its own cell a little later.
#[test]
fn loom_key_moved_from_shared_cell_keeps_its_debt() {
    for quota in QUOTAS {
        explore(move || {
            let key_table = key_table(quota);
            assert!(check(&key_table, ALICE, 1) && check(&key_table, CARL, 1));
            let late = spawn_with(&key_table, |key_table| check(key_table, BOB, 12));
            let early = check(&key_table, BOB, 9);
            assert!(early ^ late.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// The same for a batch: it keeps the key in its cell until all are charged.
#[test]
fn loom_key_moved_from_shared_cell_keeps_batch_charge() {
    for quota in QUOTAS {
        explore(move || {
            let (clock, manual) = Clock::manual();
            let limiter = Arc::new(memory_limiter(LimiterBuilder::default().clock(clock), quota));
            assert!(check(limiter.key_table(), ALICE, 1) && check(limiter.key_table(), CARL, 1));
            manual.set(Micros::new(9));
            let ours = limiter.clone();
            let late = thread::spawn(move || check(ours.key_table(), BOB, 12));
            let early = decide_batch(&[check_one(&limiter, BOB)])[0].is_allowed();
            assert!(early ^ late.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// A lock over several decisions races with a lock-free swap.
#[test]
fn loom_lock_and_swap_admit_one() {
    for quota in QUOTAS {
        explore(move || {
            let key_table = key_table(quota);
            assert!(check(&key_table, ALICE, 1));
            let other = spawn_with(&key_table, |key_table| check(key_table, ALICE, 12));
            let now = Micros::new(12);
            let CellRef::Own(cell) = key_table.locate(ALICE, StripeLock::Unlocked, now, Overflow::Share)
            else {
                panic!("it has a cell")
            };
            let mut locked = key_table.lock_cell(cell, PermitHold::Nothing, now).unwrap();
            let mut decide = |demand: Demand| {
                let request = CellRequest::new(demand);
                locked.decide(now, request, &mut CellCharge::new(&request)).is_allowed()
            };
            let (peeked, charged) = (decide(Demand::peek(1)), decide(Demand::new(1)));
            assert_eq!(peeked, charged, "no thread interferes between peek and charge");
            drop(locked);
            assert!(charged ^ other.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// Slots acquired in a batch race with one that is acquired and released alone.
#[test]
fn loom_locked_permits_race_with_permit() {
    explore(|| {
        let limiter = Arc::new(memory_limiter(LimiterBuilder::default(), "1 at once"));
        let ours = limiter.clone();
        let alone = thread::spawn(move || {
            let permit = CellRequest { hold: PermitHold::Permit, ..CellRequest::new(Demand::new(1)) };
            let (decision, charge) = ours.key_table().reserve(ALICE, ours.clock(), permit, Overflow::Deny);
            ours.key_table().refund(ALICE, ours.clock(), &charge, 1);
            decision.is_granted()
        });
        let (decision, charge) = reserve_batch(&[check_one(&limiter, ALICE)]).remove(0);
        if decision.is_granted() {
            limiter.key_table().refund(ALICE, limiter.clock(), &charge, 1);
        }
        assert!(alone.join().unwrap() | decision.is_granted(), "at least one is granted");
        assert_eq!(remaining(limiter.key_table(), ALICE, 1), 1, "the slot is free again");
    });
}

/// A limiter in memory with capacity for one key.
fn memory_limiter(builder: LimiterBuilder, quota: &str) -> MemoryLimiter {
    let quotas = [quota.parse().unwrap()];
    builder.capacity(Capacity::Keys(1)).build_memory(&quotas, QuotaSelection::All).unwrap()
}

/// A check of one token.
fn check_one(memory: &MemoryLimiter, owner: u64) -> LocalCheck<'_> {
    LocalCheck { memory, owner, cost: 1, tier: 0, max_wait: Micros::ZERO }
}

/// Reserves one token and refunds it.
fn reserve_and_cancel(key_table: &KeyTable) -> bool {
    let (clock, request) = (clock(1), CellRequest::new(Demand::new(1)));
    let (decision, charge) = key_table.reserve(ALICE, &clock, request, Overflow::Share);
    key_table.refund(ALICE, &clock, &charge, 1);
    decision.is_allowed()
}

#[test]
fn loom_refund_races_with_check_and_change() {
    explore(|| {
        let key_table = key_table("2 per 20us");
        let refunds = spawn_with(&key_table, reserve_and_cancel);
        let checks = spawn_with(&key_table, |key_table| check(key_table, ALICE, 1));
        let larger: Quota = "3 per 20us".parse().unwrap();
        assert!(key_table.change(&[larger], CarryOver::Keep, Micros::new(1)).is_ok());
        assert!(checks.join().unwrap() & refunds.join().unwrap());
        // One was spent; the other was refunded, or the change made it final.
        assert!((1..=2).contains(&remaining(&key_table, ALICE, 1)));
    });
}

/// In several words, with only two threads: three that wait for a lock may starve its holder.
#[test]
fn loom_multi_word_refund_races_with_change() {
    explore(|| {
        let key_table = key_table("3 per 20us sliding-log");
        assert!(check(&key_table, ALICE, 1));
        let refunds = spawn_with(&key_table, reserve_and_cancel);
        let smaller: Quota = "2 per 20us sliding-log".parse().unwrap();
        assert!(key_table.change(&[smaller], CarryOver::Keep, Micros::new(1)).is_ok());
        // After the change one more fits; before it, the token was refunded or the change made it final.
        assert!(refunds.join().unwrap());
        assert!((0..=1).contains(&remaining(&key_table, ALICE, 1)));
    });
}

/// A cell in creation sees zero, one or two changes; it is never read in the units of another quota.
#[test]
fn loom_new_cell_races_with_two_changes() {
    for quotas in [
        ["1000000/s burst 5", "2/s burst 5", "3000000/s burst 5"],
        ["3/us burst 5", "2/s burst 5", "1/us burst 5"],
    ] {
        explore(move || {
            let quotas = quotas.map(|quota| quota.parse::<Quota>().unwrap());
            let key_table =
                Arc::new(KeyTable::new(&quotas[..1], StateLayout::All, 1, Micros::ZERO, &[]).unwrap());
            let now = Micros::new(1_000);
            let checks = spawn_with(&key_table, |key_table| check(key_table, ALICE, 1_000));
            for quota in &quotas[1..] {
                assert!(key_table.change(&[*quota], CarryOver::Keep, now).is_ok());
            }
            assert!(checks.join().unwrap());
            assert_eq!(remaining(&key_table, ALICE, 1_000), 4);
        });
    }
}

fn permit_table() -> Arc<PermitTable> {
    Arc::new(PermitTable::new("1 at once".parse().unwrap(), 1).unwrap())
}

/// A request for one permit.
fn permit_request() -> CellRequest {
    CellRequest { hold: PermitHold::Permit, ..CellRequest::new(Demand::new(1)) }
}

/// A cell without permits is reassigned to another key, while its own key returns.
#[test]
fn loom_permits_are_counted_per_key() {
    explore(|| {
        let slots = permit_table();
        for key in [ALICE, CARL] {
            let (_, taken) = slots.decide(key, permit_request()).unwrap();
            taken.unwrap().release(1);
        }
        let other = slots.clone();
        let bob = thread::spawn(move || other.decide(BOB, permit_request()).unwrap().1.is_some());
        let carl = slots.try_acquire_one(CARL).is_some();
        let carl = carl || slots.decide(CARL, permit_request()).unwrap().1.is_some();
        assert!(carl & bob.join().unwrap(), "each key gets its own permit");
        assert_eq!([ALICE, BOB, CARL].map(|key| slots.in_flight(key)), [0, 1, 1]);
        for key in [BOB, CARL] {
            assert!(slots.decide(key, permit_request()).unwrap().1.is_none(), "no second permit");
            slots.release(key, 1);
            assert_eq!(slots.in_flight(key), 0);
        }
    });
}

/// A caller that waits for a key at its limit is notified of the next release.
#[test]
fn loom_permit_waiter_is_notified() {
    explore(|| {
        let slots = permit_table();
        assert!(slots.decide(ALICE, permit_request()).unwrap().1.is_some());
        let other = slots.clone();
        let holder = thread::spawn(move || other.release(ALICE, 1));
        let taken = slots.decide(ALICE, permit_request()).unwrap().1.is_some();
        let waits = !taken && slots.await_release(ALICE, 1) == HasWaiters::Yes;
        let notified = holder.join().unwrap() == HasWaiters::Yes;
        assert!(!waits || notified, "the waiter is never notified");
        assert!(taken || slots.decide(ALICE, permit_request()).unwrap().1.is_some());
    });
}

/// The cell of a key that releases its last permit is reassigned to another key, which has a waiter too.
#[test]
fn loom_permit_waiter_in_reused_cell_is_notified() {
    explore(|| {
        let slots = permit_table();
        for key in [ALICE, CARL] {
            assert!(slots.decide(key, permit_request()).unwrap().1.is_some());
        }
        assert_eq!(slots.await_release(ALICE, 1), HasWaiters::Yes);
        let other = slots.clone();
        let alice = thread::spawn(move || other.release(ALICE, 1));
        // Bob gets a cell only after Alice has released her permit.
        let bob = slots.decide(BOB, permit_request()).is_some();
        let waits = bob && slots.await_release(BOB, 1) == HasWaiters::Yes;
        assert_eq!(alice.join().unwrap(), HasWaiters::Yes);
        assert!(!waits || slots.release(BOB, 1) == HasWaiters::Yes, "the waiter is never notified");
    });
}
