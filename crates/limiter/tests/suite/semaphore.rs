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
use tidegate_limiter::{
    Capacity, Clock, Limiter, ManualClock, Permit, Semaphore, SemaphorePermit, WaitError, WaitPriority,
    Waiter,
};
use tidegate_testkit::test_task::{TestTask, finished_tasks, run_until_idle};

type PermitResult = Result<SemaphorePermit, WaitError>;

fn semaphore(limit: u32, max_waiters: usize) -> (Semaphore, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Semaphore::builder().clock(clock).max_waiters(max_waiters).build(limit).unwrap(), manual_clock)
}

fn enqueue(slots: &Semaphore, waiter: Waiter) -> TestTask<'static, PermitResult> {
    let slots = slots.clone();
    TestTask::new(async move { slots.acquire_owned(waiter).await })
}

#[test]
fn permit_is_released_on_drop_and_panic() {
    let slots = Semaphore::new(1).unwrap();
    let slot = slots.try_acquire().unwrap();
    assert!(slots.try_acquire().is_none() && slots.try_acquire_owned().is_none());
    drop(slot);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _slot = slots.try_acquire().unwrap();
        panic!("in the middle of work");
    }));
    assert!(panic.is_err());
    assert_eq!((slots.in_flight(), slots.limit()), (0, 1));
    assert_eq!(slots.try_acquire().unwrap().in_flight(), 1);
}

#[test]
fn acquire_many_is_all_or_none() {
    let slots = Semaphore::new(5).unwrap();
    let heavy = slots.try_acquire_many(3).unwrap();
    assert!(slots.try_acquire_many(3).is_none());
    let light = slots.try_acquire_many(2).unwrap();
    assert_eq!((heavy.in_flight(), light.in_flight(), slots.in_flight()), (3, 5, 5));
    drop((heavy, light));
    assert_eq!(slots.in_flight(), 0);
    assert!(slots.try_acquire_many(u32::MAX).is_none());
}

#[test]
fn waiters_go_by_priority_then_order() {
    let (slots, _manual_clock) = semaphore(1, 9);
    let slot = slots.try_acquire().unwrap();
    let important = Waiter::new(1).priority(WaitPriority(9));
    let mut line =
        [enqueue(&slots, Waiter::new(1)), enqueue(&slots, Waiter::new(1)), enqueue(&slots, important)];
    assert_eq!((finished_tasks(&mut line), slots.waiters()), (vec![], 3));
    drop(slot);
    assert!(slots.try_acquire().is_none(), "nobody slips past those who wait");
    for first in [2, 0, 1] {
        run_until_idle(&mut line);
        let slot = line[first].take_output().unwrap().unwrap();
        assert_eq!(slots.in_flight(), 1);
        drop(slot);
    }
    assert_eq!((slots.in_flight(), slots.waiters()), (0, 0));
}

#[test]
fn queue_is_bounded_and_respects_deadlines() {
    let (slots, manual_clock) = semaphore(1, 2);
    let _slot = slots.try_acquire().unwrap();
    let patient = Waiter::new(1).deadline(Duration::from_millis(100));
    let mut line =
        [enqueue(&slots, patient), enqueue(&slots, Waiter::new(1)), enqueue(&slots, Waiter::new(1))];
    assert_eq!(line[2].take_output().unwrap().unwrap_err(), WaitError::QueueFull);
    advance(&manual_clock, 99);
    assert!(finished_tasks(&mut line[..2]).is_empty());
    advance(&manual_clock, 1);
    assert_eq!(finished_tasks(&mut line[..2]), [0]);
    assert_eq!(line[0].take_output().unwrap().unwrap_err(), WaitError::DeadlineExceeded);
    assert_eq!(slots.waiters(), 1);
}

#[test]
fn resize_wakes_waiters_and_rejects_impossible_ones() {
    let (slots, _manual_clock) = semaphore(2, 9);
    let held = slots.try_acquire_many(2).unwrap();
    let mut line: Vec<_> = [1, 2, 1].map(|cost| enqueue(&slots, Waiter::new(cost))).into();
    assert_eq!(enqueue(&slots, Waiter::new(3)).take_output().unwrap().unwrap_err(), WaitError::ExceedsLimit);
    slots.resize(3).unwrap();
    assert_eq!(finished_tasks(&mut line), [0]);
    slots.resize(1).unwrap();
    assert_eq!(finished_tasks(&mut line), [0, 1], "two are more than there are now");
    assert_eq!(line[1].take_output().unwrap().unwrap_err(), WaitError::ExceedsLimit);
    drop(held);
    assert_eq!(finished_tasks(&mut line), [0], "one slot is still held");
    assert_eq!((slots.in_flight(), slots.limit()), (1, 1));
    drop(line[0].take_output());
    assert_eq!(finished_tasks(&mut line), [2]);
}

#[test]
fn zero_limit_is_rejected() {
    let zero = Semaphore::new(0).unwrap_err();
    assert_eq!(zero.to_string(), "a number of slots of zero; give a number above zero");
    let slots = Semaphore::new(u32::MAX).unwrap();
    assert!(slots.resize(0).is_err());
    assert_eq!(slots.limit(), u32::MAX);
    let _all = slots.try_acquire_many(u32::MAX).unwrap();
    assert!(slots.try_acquire().is_none());
}

#[test]
fn threads_never_exceed_the_limit() {
    let slots = Semaphore::new(3).unwrap();
    let (inside, most, barrier) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(16));
    thread::scope(|scope| {
        for index in 0..16 {
            let (slots, inside, most, barrier) = (&slots, &inside, &most, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for turn in 0..500 {
                    let slot = match (index + turn) % 2 {
                        0 => slots.try_acquire(),
                        _ => slots.acquire_blocking(Waiter::new(1)).ok(),
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
    assert_eq!((slots.in_flight(), slots.waiters()), (0, 0));
}

/// A key that finds the table full waits as long as it likes: room is found when another gives its permit back.
#[test]
fn waiter_without_cell_waits_until_deadline() {
    let (clock, manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).build("1 at once").unwrap();
    let mut held: Vec<_> = (0..1_000).map(|key| limiter.blocking().key(&key).permit()).collect();
    held.retain(|permit| permit.decision().is_granted());
    assert!(held.len() < 1_000, "the table is full");
    let waiter = Waiter::new(1).deadline(Duration::from_secs(10));
    let bucket = limiter.key("late");
    let mut line = [TestTask::new(bucket.permit_queued(waiter))];
    assert!(finished_tasks(&mut line).is_empty(), "there may be room before the deadline");
    drop(held);
    advance(&manual_clock, 1_000);
    assert!(line[0].poll_if_woken() && line[0].take_output().unwrap().is_ok());
}

#[derive(Clone, Debug)]
enum SemaphoreOp {
    Acquire(u32),
    Wait { cost: u64, priority: u8, deadline: Option<u64> },
    Release(usize),
    Cancel(usize),
    Panic,
    Resize(u32),
    AdvanceTime(u64),
}

fn semaphore_op() -> impl Strategy<Value = SemaphoreOp> {
    prop_oneof![
        3 => (1..4_u32).prop_map(SemaphoreOp::Acquire),
        4 => (1..4_u64, 0..3_u8, prop::option::of(0..50_u64))
            .prop_map(|(cost, priority, deadline)| SemaphoreOp::Wait { cost, priority, deadline }),
        4 => any::<usize>().prop_map(SemaphoreOp::Release),
        2 => any::<usize>().prop_map(SemaphoreOp::Cancel),
        1 => Just(SemaphoreOp::Panic),
        2 => (1..6_u32).prop_map(SemaphoreOp::Resize),
        2 => (0..40_u64).prop_map(SemaphoreOp::AdvanceTime),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn permits_are_conserved_in_any_order(deeds in prop::collection::vec(semaphore_op(), 1..60)) {
        let (slots, manual_clock) = semaphore(3, 5);
        let mut held: Vec<(u32, SemaphorePermit<&Semaphore>)> = Vec::new();
        let mut line: Vec<(u32, TestTask<'static, PermitResult>)> = Vec::new();
        // A slot that a waiter got is kept as one that outlives the borrow.
        let mut owned: Vec<(u32, SemaphorePermit)> = Vec::new();
        for deed in deeds {
            let before = slots.in_flight();
            match deed {
                SemaphoreOp::Acquire(count) => {
                    let is_free = before + count <= slots.limit() && slots.waiters() == 0;
                    let slot = slots.try_acquire_many(count);
                    prop_assert_eq!(slot.is_some(), is_free);
                    held.extend(slot.map(|slot| (count, slot)));
                }
                SemaphoreOp::Wait { cost, priority, deadline } => {
                    let waiter = Waiter {
                        deadline: deadline.map(Duration::from_millis),
                        ..Waiter::new(cost).priority(WaitPriority(priority))
                    };
                    line.push((cost as u32, enqueue(&slots, waiter)));
                }
                SemaphoreOp::Release(index) if !held.is_empty() => drop(held.remove(index % held.len())),
                SemaphoreOp::Release(index) if !owned.is_empty() => drop(owned.remove(index % owned.len())),
                SemaphoreOp::Cancel(index) if !line.is_empty() => drop(line.remove(index % line.len())),
                SemaphoreOp::Release(_) | SemaphoreOp::Cancel(_) => {}
                SemaphoreOp::Panic => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _slot = slots.try_acquire();
                        std::panic::resume_unwind(Box::new("at work"));
                    }));
                }
                SemaphoreOp::Resize(limit) => slots.resize(limit).unwrap(),
                SemaphoreOp::AdvanceTime(millis) => advance(&manual_clock, millis),
            }
            while line.iter_mut().map(|(_, sleeper)| sleeper.poll_if_woken()).filter(|woken| *woken).count() > 0 {}
            line.retain_mut(|(cost, sleeper)| match sleeper.take_output() {
                Some(end) => {
                    owned.extend(end.ok().map(|slot| (*cost, slot)));
                    false
                }
                None => true,
            });

            let total: u32 = held.iter().map(|(count, _)| count).chain(owned.iter().map(|(count, _)| count)).sum();
            prop_assert_eq!(slots.in_flight(), total, "what is held is what was handed out");
            prop_assert!(total <= slots.limit().max(before), "a grant is never over the limit");
            prop_assert_eq!(slots.waiters() as usize, line.len());
            // The first in line does not wait for what is free.
            if let Some(least) = line.iter().map(|(cost, _)| *cost).max() {
                prop_assert!(total + least > slots.limit() || line.len() > 1);
            }
        }
        drop((held, owned, line));
        prop_assert_eq!((slots.in_flight(), slots.waiters()), (0, 0));
    }
}

/// What is known of one key of a limiter of permits.
#[derive(Default)]
struct KeyPermits<'a> {
    permits: Vec<Permit>,
    waiters: Vec<TestTask<'a, Result<Permit, WaitError>>>,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same for permits of keys, which share nothing but the limit: a change of it touches all.
    #[test]
    fn key_permits_are_conserved_in_any_order(
        deeds in prop::collection::vec((semaphore_op(), 0..2_usize), 1..60),
    ) {
        let (clock, manual_clock) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(4)).build("3 at once").unwrap();
        let (limiter, mut limit) = (&limiter, 3);
        let mut keys = [KeyPermits::default(), KeyPermits::default()];
        for (deed, key) in deeds {
            let bucket = limiter.blocking().key(["alice", "bob"][key]);
            let KeyPermits { permits, waiters } = &mut keys[key];
            let before = permits.len();
            match deed {
                SemaphoreOp::Acquire(_) => {
                    let permit = bucket.permit();
                    prop_assert_eq!(permit.decision().is_granted(), before < limit, "{:?}", permit);
                    permits.extend(Some(permit).filter(|permit| permit.decision().is_granted()));
                }
                SemaphoreOp::Wait { priority, deadline, .. } => {
                    let deadline = deadline.map(Duration::from_millis);
                    let waiter = Waiter { deadline, ..Waiter::new(1).priority(WaitPriority(priority)) };
                    let bucket = limiter.key(["alice", "bob"][key]);
                    waiters.push(TestTask::new(async move { bucket.permit_queued(waiter).await }));
                }
                SemaphoreOp::Release(index) if !permits.is_empty() => drop(permits.remove(index % permits.len())),
                SemaphoreOp::Cancel(index) if !waiters.is_empty() => drop(waiters.remove(index % waiters.len())),
                SemaphoreOp::Release(_) | SemaphoreOp::Cancel(_) => {}
                SemaphoreOp::Panic => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _permit = bucket.permit();
                        std::panic::resume_unwind(Box::new("at work"));
                    }));
                }
                SemaphoreOp::Resize(to) => {
                    limit = to as usize;
                    limiter.change(Quota::concurrency(to.into()).unwrap(), CarryOver::Keep).unwrap();
                }
                SemaphoreOp::AdvanceTime(millis) => advance(&manual_clock, millis),
            }
            for (key, KeyPermits { permits, waiters }) in keys.iter_mut().enumerate() {
                run_until_idle(waiters);
                waiters.retain_mut(|sleeper| match sleeper.take_output() {
                    Some(end) => {
                        permits.extend(end.ok());
                        false
                    }
                    None => true,
                });
                let look = limiter.blocking().key(["alice", "bob"][key]).peek(0);
                prop_assert_eq!(look.remaining() as usize, limit.saturating_sub(permits.len()));
                prop_assert!(waiters.is_empty() || permits.len() >= limit, "who waits does not wait for what is free");
            }
        }
        drop(keys);
        prop_assert_eq!(limiter.stats().unwrap().live, 0);
    }
}
