//! Slots: conserved under any order of taking, giving back, waiting, cancelling, panicking and resizing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::advance;
use proptest::prelude::*;
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::{CarryOver, Quota};
use tidegate_limiter::{Capacity, Clock, ClockHand, Limiter, Permit, Priority, Refused, Slot, Slots, Waiter};
use tidegate_testkit::sleeper::{Sleeper, ended, settle};

type Answer = Result<Slot, Refused>;

fn slots(limit: u32, places: usize) -> (Slots, ClockHand) {
    let (clock, hand) = Clock::manual();
    (Slots::builder().clock(clock).waiting_places(places).build(limit).unwrap(), hand)
}

fn stand(slots: &Slots, waiter: Waiter) -> Sleeper<'static, Answer> {
    let slots = slots.clone();
    Sleeper::new(async move { slots.take_owned(waiter).await })
}

#[test]
fn a_slot_is_given_back_on_drop_and_on_panic() {
    let slots = Slots::new(1).unwrap();
    let slot = slots.try_take().unwrap();
    assert!(slots.try_take().is_none() && slots.try_take_owned().is_none());
    drop(slot);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _slot = slots.try_take().unwrap();
        panic!("in the middle of work");
    }));
    assert!(panic.is_err());
    assert_eq!((slots.in_flight(), slots.limit()), (0, 1));
    assert_eq!(slots.try_take().unwrap().in_flight(), 1);
}

#[test]
fn heavy_work_takes_several_or_none() {
    let slots = Slots::new(5).unwrap();
    let heavy = slots.try_take_many(3).unwrap();
    assert!(slots.try_take_many(3).is_none());
    let light = slots.try_take_many(2).unwrap();
    assert_eq!((heavy.in_flight(), light.in_flight(), slots.in_flight()), (3, 5, 5));
    drop((heavy, light));
    assert_eq!(slots.in_flight(), 0);
    assert!(slots.try_take_many(u32::MAX).is_none());
}

#[test]
fn those_who_wait_go_by_priority_and_then_in_order() {
    let (slots, _hand) = slots(1, 9);
    let slot = slots.try_take().unwrap();
    let important = Waiter::new(1).priority(Priority(9));
    let mut line = [stand(&slots, Waiter::new(1)), stand(&slots, Waiter::new(1)), stand(&slots, important)];
    assert_eq!((ended(&mut line), slots.waiting()), (vec![], 3));
    drop(slot);
    assert!(slots.try_take().is_none(), "nobody slips past those who wait");
    for first in [2, 0, 1] {
        settle(&mut line);
        let slot = line[first].take().unwrap().unwrap();
        assert_eq!(slots.in_flight(), 1);
        drop(slot);
    }
    assert_eq!((slots.in_flight(), slots.waiting()), (0, 0));
}

#[test]
fn a_line_is_bounded_and_deadlines_end_it() {
    let (slots, hand) = slots(1, 2);
    let _slot = slots.try_take().unwrap();
    let patient = Waiter::new(1).deadline(Duration::from_millis(100));
    let mut line = [stand(&slots, patient), stand(&slots, Waiter::new(1)), stand(&slots, Waiter::new(1))];
    assert_eq!(line[2].take().unwrap().unwrap_err(), Refused::Full);
    advance(&hand, 99);
    assert!(ended(&mut line[..2]).is_empty());
    advance(&hand, 1);
    assert_eq!(ended(&mut line[..2]), [0]);
    assert_eq!(line[0].take().unwrap().unwrap_err(), Refused::Deadline);
    assert_eq!(slots.waiting(), 1);
}

#[test]
fn more_slots_wake_those_who_wait_and_fewer_refuse_what_can_never_be() {
    let (slots, _hand) = slots(2, 9);
    let held = slots.try_take_many(2).unwrap();
    let mut line: Vec<_> = [1, 2, 1].map(|cost| stand(&slots, Waiter::new(cost))).into();
    assert_eq!(stand(&slots, Waiter::new(3)).take().unwrap().unwrap_err(), Refused::Never);
    slots.resize(3).unwrap();
    assert_eq!(ended(&mut line), [0]);
    slots.resize(1).unwrap();
    assert_eq!(ended(&mut line), [0, 1], "two are more than there are now");
    assert_eq!(line[1].take().unwrap().unwrap_err(), Refused::Never);
    drop(held);
    assert_eq!(ended(&mut line), [0], "one slot is still held");
    assert_eq!((slots.in_flight(), slots.limit()), (1, 1));
    drop(line[0].take());
    assert_eq!(ended(&mut line), [2]);
}

#[test]
fn nothing_is_refused_when_it_is_built_but_zero() {
    let zero = Slots::new(0).unwrap_err();
    assert_eq!(zero.to_string(), "a number of slots of zero; give a number above zero");
    let slots = Slots::new(u32::MAX).unwrap();
    assert!(slots.resize(0).is_err());
    assert_eq!(slots.limit(), u32::MAX);
    let _all = slots.try_take_many(u32::MAX).unwrap();
    assert!(slots.try_take().is_none());
}

#[test]
fn sixteen_threads_are_never_over_the_limit() {
    let slots = Slots::new(3).unwrap();
    let (inside, most, barrier) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(16));
    thread::scope(|scope| {
        for index in 0..16 {
            let (slots, inside, most, barrier) = (&slots, &inside, &most, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for turn in 0..500 {
                    let slot = match (index + turn) % 2 {
                        0 => slots.try_take(),
                        _ => slots.take_blocking(Waiter::new(1)).ok(),
                    };
                    if slot.is_some() {
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.into_inner()));
    assert_eq!((slots.in_flight(), slots.waiting()), (0, 0));
}

/// A key that finds the table full waits as long as it likes: room is found when another gives its permit back.
#[test]
fn who_finds_no_room_for_its_key_waits_until_its_deadline() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).build("1 at once").unwrap();
    let mut held: Vec<_> = (0..1_000).map(|key| limiter.blocking().key(&key).permit()).collect();
    held.retain(|permit| permit.decision().is_granted());
    assert!(held.len() < 1_000, "the table is full");
    let waiter = Waiter::new(1).deadline(Duration::from_secs(10));
    let bucket = limiter.key("late");
    let mut line = [Sleeper::new(bucket.permit_in_line(waiter))];
    assert!(ended(&mut line).is_empty(), "there may be room before the deadline");
    drop(held);
    advance(&hand, 1_000);
    assert!(line[0].stir() && line[0].take().unwrap().is_ok());
}

#[derive(Clone, Debug)]
enum Deed {
    Take(u32),
    Wait { cost: u64, priority: u8, deadline: Option<u64> },
    GiveBack(usize),
    Cancel(usize),
    Panic,
    Resize(u32),
    Pass(u64),
}

fn deed() -> impl Strategy<Value = Deed> {
    prop_oneof![
        3 => (1..4_u32).prop_map(Deed::Take),
        4 => (1..4_u64, 0..3_u8, prop::option::of(0..50_u64))
            .prop_map(|(cost, priority, deadline)| Deed::Wait { cost, priority, deadline }),
        4 => any::<usize>().prop_map(Deed::GiveBack),
        2 => any::<usize>().prop_map(Deed::Cancel),
        1 => Just(Deed::Panic),
        2 => (1..6_u32).prop_map(Deed::Resize),
        2 => (0..40_u64).prop_map(Deed::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn slots_are_conserved_in_any_order(deeds in prop::collection::vec(deed(), 1..60)) {
        let (slots, hand) = slots(3, 5);
        let mut held: Vec<(u32, Slot<&Slots>)> = Vec::new();
        let mut line: Vec<(u32, Sleeper<'static, Answer>)> = Vec::new();
        // A slot that a waiter got is kept as one that outlives the borrow.
        let mut owned: Vec<(u32, Slot)> = Vec::new();
        for deed in deeds {
            let before = slots.in_flight();
            match deed {
                Deed::Take(count) => {
                    let is_free = before + count <= slots.limit() && slots.waiting() == 0;
                    let slot = slots.try_take_many(count);
                    prop_assert_eq!(slot.is_some(), is_free);
                    held.extend(slot.map(|slot| (count, slot)));
                }
                Deed::Wait { cost, priority, deadline } => {
                    let waiter = Waiter {
                        deadline: deadline.map(Duration::from_millis),
                        ..Waiter::new(cost).priority(Priority(priority))
                    };
                    line.push((cost as u32, stand(&slots, waiter)));
                }
                Deed::GiveBack(index) if !held.is_empty() => drop(held.remove(index % held.len())),
                Deed::GiveBack(index) if !owned.is_empty() => drop(owned.remove(index % owned.len())),
                Deed::Cancel(index) if !line.is_empty() => drop(line.remove(index % line.len())),
                Deed::GiveBack(_) | Deed::Cancel(_) => {}
                Deed::Panic => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _slot = slots.try_take();
                        std::panic::resume_unwind(Box::new("at work"));
                    }));
                }
                Deed::Resize(limit) => slots.resize(limit).unwrap(),
                Deed::Pass(millis) => advance(&hand, millis),
            }
            while line.iter_mut().map(|(_, sleeper)| sleeper.stir()).filter(|woken| *woken).count() > 0 {}
            line.retain_mut(|(cost, sleeper)| match sleeper.take() {
                Some(end) => {
                    owned.extend(end.ok().map(|slot| (*cost, slot)));
                    false
                }
                None => true,
            });

            let total: u32 = held.iter().map(|(count, _)| count).chain(owned.iter().map(|(count, _)| count)).sum();
            prop_assert_eq!(slots.in_flight(), total, "what is held is what was handed out");
            prop_assert!(total <= slots.limit().max(before), "a grant is never over the limit");
            prop_assert_eq!(slots.waiting() as usize, line.len());
            // The first in line does not wait for what is free.
            if let Some(least) = line.iter().map(|(cost, _)| *cost).max() {
                prop_assert!(total + least > slots.limit() || line.len() > 1);
            }
        }
        drop((held, owned, line));
        prop_assert_eq!((slots.in_flight(), slots.waiting()), (0, 0));
    }
}

/// What is known of one key of a limiter of permits.
#[derive(Default)]
struct OfKey<'a> {
    held: Vec<Permit>,
    line: Vec<Sleeper<'a, Result<Permit, Refused>>>,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same for permits of keys, which share nothing but the limit: a change of it touches all.
    #[test]
    fn permits_of_keys_are_conserved_in_any_order(
        deeds in prop::collection::vec((deed(), 0..2_usize), 1..60),
    ) {
        let (clock, hand) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(4)).build("3 at once").unwrap();
        let (limiter, mut limit) = (&limiter, 3);
        let mut keys = [OfKey::default(), OfKey::default()];
        for (deed, key) in deeds {
            let bucket = limiter.blocking().key(["alice", "bob"][key]);
            let OfKey { held, line } = &mut keys[key];
            let before = held.len();
            match deed {
                Deed::Take(_) => {
                    let permit = bucket.permit();
                    prop_assert_eq!(permit.decision().is_granted(), before < limit, "{:?}", permit);
                    held.extend(Some(permit).filter(|permit| permit.decision().is_granted()));
                }
                Deed::Wait { priority, deadline, .. } => {
                    let deadline = deadline.map(Duration::from_millis);
                    let waiter = Waiter { deadline, ..Waiter::new(1).priority(Priority(priority)) };
                    let bucket = limiter.key(["alice", "bob"][key]);
                    line.push(Sleeper::new(async move { bucket.permit_in_line(waiter).await }));
                }
                Deed::GiveBack(index) if !held.is_empty() => drop(held.remove(index % held.len())),
                Deed::Cancel(index) if !line.is_empty() => drop(line.remove(index % line.len())),
                Deed::GiveBack(_) | Deed::Cancel(_) => {}
                Deed::Panic => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _permit = bucket.permit();
                        std::panic::resume_unwind(Box::new("at work"));
                    }));
                }
                Deed::Resize(to) => {
                    limit = to as usize;
                    limiter.change(Quota::concurrency(to.into()).unwrap(), CarryOver::Keep).unwrap();
                }
                Deed::Pass(millis) => advance(&hand, millis),
            }
            for (key, OfKey { held, line }) in keys.iter_mut().enumerate() {
                settle(line);
                line.retain_mut(|sleeper| match sleeper.take() {
                    Some(end) => {
                        held.extend(end.ok());
                        false
                    }
                    None => true,
                });
                let look = limiter.blocking().key(["alice", "bob"][key]).peek(0);
                prop_assert_eq!(look.remaining() as usize, limit.saturating_sub(held.len()));
                prop_assert!(line.is_empty() || held.len() >= limit, "who waits does not wait for what is free");
            }
        }
        drop(keys);
        prop_assert_eq!(limiter.stats().unwrap().live, 0);
    }
}
