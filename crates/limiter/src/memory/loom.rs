//! Every order in which two or three threads can meet in the smallest of tables: two cells, one shared cell.
//!
//! `scripts/test loom` runs them: all orders with up to three preemptions, or as many as `LOOM_MAX_PREEMPTIONS` says.

use super::{
    charge::Charge,
    several::{decide_together, reserve_together},
    slots::SlotTable,
    space::{Space, Spot},
    table::Stripe,
    wide::{Hold, Layout, Question},
};
use crate::{
    clock::Clock,
    limiter::{Capacity, LimiterBuilder, LocalCheck, Memory, Overflow},
    slots::Awaited,
    store::Choice,
};
use loom::{sync::Arc, thread};
use tidegate_core::{CarryOver, Demand, Micros, Quota};

/// One per 10 µs, in one word and in several.
const BOTH: [&str; 2] = ["1 per 10us", "1 per 10us sliding-log"];

// Bob and Carl like the same cell best, and do not wait for each other to insert.
const ALICE: u64 = 0x1000_0000_0000_0000;
const BOB: u64 = 0x5000_0000_0000_0003;
const CARL: u64 = 0x9000_0000_0000_0001;

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.max_branches = 20_000;
    builder.check(model);
}

fn space(quota: &str) -> Arc<Space> {
    let quota = quota.parse().unwrap();
    Arc::new(Space::new(&[quota], Layout::Together, 1, Micros::ZERO, &[]).unwrap())
}

fn clock(at: u64) -> Clock {
    let (clock, hand) = Clock::manual();
    hand.set(Micros::new(at));
    clock
}

fn check(space: &Space, key: u64, at: u64) -> bool {
    space.check(key, &clock(at), 1, Overflow::Share).is_allowed()
}

fn remaining(space: &Space, key: u64, at: u64) -> u64 {
    let look = Question::plain(Demand::probe(0));
    space.decide(key, &clock(at), look, Overflow::Share).remaining()
}

fn beside(space: &Arc<Space>, work: impl Fn(&Space) -> bool + 'static) -> thread::JoinHandle<bool> {
    let space = space.clone();
    thread::spawn(move || work(&space))
}

#[test]
fn loom_a_new_key_gets_one_cell() {
    for quota in BOTH {
        explore(move || {
            let space = space(quota);
            let other = beside(&space, |space| check(space, ALICE, 5));
            let ours = check(&space, ALICE, 5);
            assert!(ours ^ other.join().unwrap(), "exactly one is admitted");
            assert_eq!(space.table().used(), 1);
        });
    }
}

/// Two new keys want the last cell: one gets it, the other is counted in the shared one.
#[test]
fn loom_the_last_cell_goes_to_one_of_two() {
    // At zero a new cell looks as if it had never been used.
    for (quota, at) in [(BOTH[0], 0), (BOTH[0], 5), (BOTH[1], 0), (BOTH[1], 5)] {
        explore(move || {
            let space = space(quota);
            assert!(check(&space, CARL, at));
            let other = beside(&space, move |space| check(space, BOB, at));
            assert!(check(&space, ALICE, at) & other.join().unwrap());
            assert_eq!(space.table().used(), 2);
            let denied = [ALICE, BOB, CARL].map(|key| !check(&space, key, at + 1));
            assert_eq!(denied, [true; 3]);
        });
    }
}

/// In the very moment in which a cell is spent, its word equals that of a new key: nobody may take it over yet.
#[test]
fn loom_a_cell_is_not_taken_before_a_new_key_differs() {
    for quota in BOTH {
        explore(move || {
            let space = space(quota);
            assert!(check(&space, ALICE, 1) && check(&space, CARL, 1));
            let other = beside(&space, |space| check(space, BOB, 11));
            assert!(check(&space, CARL, 11) & other.join().unwrap());
            assert!(!check(&space, CARL, 12) && !check(&space, BOB, 12));
        });
    }
}

/// Both cells are spent. One thread comes back for its own, another takes it over.
#[test]
fn loom_a_spent_cell_goes_to_one_of_two() {
    for quota in BOTH {
        explore(move || {
            let space = space(quota);
            assert!(check(&space, ALICE, 1) && check(&space, CARL, 1));
            let other = beside(&space, |space| check(space, BOB, 20));
            assert!(check(&space, CARL, 20) & other.join().unwrap(), "both are as good as new");
            assert!(!check(&space, CARL, 21) && !check(&space, BOB, 21), "and both are remembered");
            assert_eq!(space.table().overflowed(), 0);
        });
    }
}

/// A key without room is counted in the shared cell, while the same key gets a cell of its own a little later.
#[test]
fn loom_who_finds_room_brings_its_debt() {
    for quota in BOTH {
        explore(move || {
            let space = space(quota);
            assert!(check(&space, ALICE, 1) && check(&space, CARL, 1));
            let late = beside(&space, |space| check(space, BOB, 12));
            let early = check(&space, BOB, 9);
            assert!(early ^ late.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// The same for a decision that spans several keys: it keeps the key where it is until all are charged.
#[test]
fn loom_who_finds_room_brings_what_was_charged_together() {
    for quota in BOTH {
        explore(move || {
            let (clock, hand) = Clock::manual();
            let limiter = Arc::new(memory(LimiterBuilder::default().clock(clock), quota));
            assert!(check(limiter.space(), ALICE, 1) && check(limiter.space(), CARL, 1));
            hand.set(Micros::new(9));
            let ours = limiter.clone();
            let late = thread::spawn(move || check(ours.space(), BOB, 12));
            let early = decide_together(&[one(&limiter, BOB)])[0].is_allowed();
            assert!(early ^ late.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// A lock that spans several decisions meets a swap that needs none.
#[test]
fn loom_a_lock_and_a_swap_admit_one() {
    for quota in BOTH {
        explore(move || {
            let space = space(quota);
            assert!(check(&space, ALICE, 1));
            let other = beside(&space, |space| check(space, ALICE, 12));
            let now = Micros::new(12);
            let Spot::Own(cell) = space.spot(ALICE, Stripe::Free, now, Overflow::Share) else {
                panic!("it has a cell")
            };
            let mut grip = space.hold(cell, Hold::Nothing, now).unwrap();
            let mut ask = |demand: Demand| {
                let question = Question::plain(demand);
                grip.decide(now, question, &mut Charge::of(&question)).is_allowed()
            };
            let (looked, took) = (ask(Demand::probe(1)), ask(Demand::now(1)));
            assert_eq!(looked, took, "nobody comes between a look and a charge");
            drop(grip);
            assert!(took ^ other.join().unwrap(), "exactly one is admitted");
        });
    }
}

/// Slots that are taken together with others meet one that is taken and given back alone.
#[test]
fn loom_slots_that_are_gripped_meet_a_permit() {
    explore(|| {
        let limiter = Arc::new(memory(LimiterBuilder::default(), "1 at once"));
        let ours = limiter.clone();
        let alone = thread::spawn(move || {
            let permit = Question { hold: Hold::Permit, ..Question::plain(Demand::now(1)) };
            let (decision, charge) = ours.space().reserve(ALICE, ours.clock(), permit, Overflow::Deny);
            ours.space().refund(ALICE, ours.clock(), &charge, 1);
            decision.is_granted()
        });
        let (decision, charge) = reserve_together(&[one(&limiter, ALICE)]).remove(0);
        if decision.is_granted() {
            limiter.space().refund(ALICE, limiter.clock(), &charge, 1);
        }
        assert!(alone.join().unwrap() | decision.is_granted(), "one of them comes first");
        assert_eq!(remaining(limiter.space(), ALICE, 1), 1, "and nothing is lost");
    });
}

/// A limiter in memory with room for one key.
fn memory(builder: LimiterBuilder, quota: &str) -> Memory {
    let quotas = [quota.parse().unwrap()];
    builder.capacity(Capacity::Keys(1)).build_memory(&quotas, Choice::All).unwrap()
}

/// One token of a key.
fn one(memory: &Memory, owner: u64) -> LocalCheck<'_> {
    LocalCheck { memory, owner, cost: 1, tier: 0, max_wait: Micros::ZERO }
}

/// Takes one and gives it back.
fn reserve_and_cancel(space: &Space) -> bool {
    let (clock, question) = (clock(1), Question::plain(Demand::now(1)));
    let (decision, charge) = space.reserve(ALICE, &clock, question, Overflow::Share);
    space.refund(ALICE, &clock, &charge, 1);
    decision.is_allowed()
}

#[test]
fn loom_a_refund_meets_a_check_and_a_change() {
    explore(|| {
        let space = space("2 per 20us");
        let refunds = beside(&space, reserve_and_cancel);
        let checks = beside(&space, |space| check(space, ALICE, 1));
        let larger: Quota = "3 per 20us".parse().unwrap();
        assert!(space.change(&[larger], CarryOver::Keep, Micros::new(1)).is_ok());
        assert!(checks.join().unwrap() & refunds.join().unwrap());
        // One was taken for good; the other came back, or the change had settled it.
        assert!((1..=2).contains(&remaining(&space, ALICE, 1)));
    });
}

/// In several words, where two threads at a time are enough: three that wait for a lock may starve its holder.
#[test]
fn loom_a_refund_meets_a_change_in_several_words() {
    explore(|| {
        let space = space("3 per 20us sliding-log");
        assert!(check(&space, ALICE, 1));
        let refunds = beside(&space, reserve_and_cancel);
        let smaller: Quota = "2 per 20us sliding-log".parse().unwrap();
        assert!(space.change(&[smaller], CarryOver::Keep, Micros::new(1)).is_ok());
        // Asked after the change, there is room for one more; asked before, it came back or was settled.
        assert!(refunds.join().unwrap());
        assert!((0..=1).contains(&remaining(&space, ALICE, 1)));
    });
}

/// A cell that is being made sees no change, one or two; it is never read in the units of another quota.
#[test]
fn loom_a_new_cell_meets_two_changes() {
    for quotas in [
        ["1000000/s burst 5", "2/s burst 5", "3000000/s burst 5"],
        ["3/us burst 5", "2/s burst 5", "1/us burst 5"],
    ] {
        explore(move || {
            let quotas = quotas.map(|quota| quota.parse::<Quota>().unwrap());
            let space = Arc::new(Space::new(&quotas[..1], Layout::Together, 1, Micros::ZERO, &[]).unwrap());
            let now = Micros::new(1_000);
            let checks = beside(&space, |space| check(space, ALICE, 1_000));
            for quota in &quotas[1..] {
                assert!(space.change(&[*quota], CarryOver::Keep, now).is_ok());
            }
            assert!(checks.join().unwrap());
            assert_eq!(remaining(&space, ALICE, 1_000), 4);
        });
    }
}

fn permits() -> Arc<SlotTable> {
    Arc::new(SlotTable::new("1 at once".parse().unwrap(), 1).unwrap())
}

/// A question that takes one permit.
fn permit() -> Question {
    Question { hold: Hold::Permit, ..Question::plain(Demand::now(1)) }
}

/// A cell that holds nothing goes to another key, while its own comes back for it.
#[test]
fn loom_permits_are_counted_for_their_own_key() {
    explore(|| {
        let slots = permits();
        for key in [ALICE, CARL] {
            let (_, taken) = slots.decide(key, permit()).unwrap();
            taken.unwrap().give_back(1);
        }
        let other = slots.clone();
        let bob = thread::spawn(move || other.decide(BOB, permit()).unwrap().1.is_some());
        let carl = slots.try_take_one(CARL).is_some();
        let carl = carl || slots.decide(CARL, permit()).unwrap().1.is_some();
        assert!(carl & bob.join().unwrap(), "each has a permit of its own");
        assert_eq!([ALICE, BOB, CARL].map(|key| slots.held(key)), [0, 1, 1]);
        for key in [BOB, CARL] {
            assert!(slots.decide(key, permit()).unwrap().1.is_none(), "and no second one");
            slots.give_back(key, 1);
            assert_eq!(slots.held(key), 0);
        }
    });
}

/// Who finds a key at its limit and waits is told of the permit that is given back.
#[test]
fn loom_who_waits_for_a_permit_hears_of_it() {
    explore(|| {
        let slots = permits();
        assert!(slots.decide(ALICE, permit()).unwrap().1.is_some());
        let other = slots.clone();
        let holder = thread::spawn(move || other.give_back(ALICE, 1));
        let taken = slots.decide(ALICE, permit()).unwrap().1.is_some();
        let waits = !taken && slots.await_release(ALICE, 1) == Awaited::Yes;
        let told = holder.join().unwrap() == Awaited::Yes;
        assert!(!waits || told, "it waits for ever");
        assert!(taken || slots.decide(ALICE, permit()).unwrap().1.is_some());
    });
}

/// The cell of a key that gives its last permit back goes to another, who is waited for as well.
#[test]
fn loom_who_waits_for_a_permit_in_a_cell_of_another_hears_of_it() {
    explore(|| {
        let slots = permits();
        for key in [ALICE, CARL] {
            assert!(slots.decide(key, permit()).unwrap().1.is_some());
        }
        assert_eq!(slots.await_release(ALICE, 1), Awaited::Yes);
        let other = slots.clone();
        let alice = thread::spawn(move || other.give_back(ALICE, 1));
        // There is room for Bob only once Alice holds nothing.
        let bob = slots.decide(BOB, permit()).is_some();
        let waits = bob && slots.await_release(BOB, 1) == Awaited::Yes;
        assert_eq!(alice.join().unwrap(), Awaited::Yes);
        assert!(!waits || slots.give_back(BOB, 1) == Awaited::Yes, "it waits for ever");
    });
}
