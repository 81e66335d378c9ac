//! Semaphores: permits are conserved under any order of acquire, release, wait, cancel, panic and resize.

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

fn enqueue(semaphore: &Semaphore, waiter: Waiter) -> TestTask<'static, PermitResult> {
    let semaphore = semaphore.clone();
    TestTask::new(async move { semaphore.acquire_owned(waiter).await })
}

#[test]
fn permit_is_released_on_drop_and_panic() {
    let semaphore = Semaphore::new(1).unwrap();
    let permit = semaphore.try_acquire().unwrap();
    assert!(semaphore.try_acquire().is_none() && semaphore.try_acquire_owned().is_none());
    drop(permit);
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _permit = semaphore.try_acquire().unwrap();
        panic!("work failed");
    }));
    assert!(panic.is_err());
    assert_eq!((semaphore.in_flight(), semaphore.limit()), (0, 1));
    assert_eq!(semaphore.try_acquire().unwrap().in_flight(), 1);
}

#[test]
fn acquire_many_is_all_or_none() {
    let semaphore = Semaphore::new(5).unwrap();
    let heavy = semaphore.try_acquire_many(3).unwrap();
    assert!(semaphore.try_acquire_many(3).is_none());
    let light = semaphore.try_acquire_many(2).unwrap();
    assert_eq!((heavy.in_flight(), light.in_flight(), semaphore.in_flight()), (3, 5, 5));
    drop((heavy, light));
    assert_eq!(semaphore.in_flight(), 0);
    assert!(semaphore.try_acquire_many(u32::MAX).is_none());
}

#[test]
fn waiters_go_by_priority_then_order() {
    let (semaphore, _manual_clock) = semaphore(1, 9);
    let permit = semaphore.try_acquire().unwrap();
    let important = Waiter::new(1).priority(WaitPriority(9));
    let mut waiters = [
        enqueue(&semaphore, Waiter::new(1)),
        enqueue(&semaphore, Waiter::new(1)),
        enqueue(&semaphore, important),
    ];
    assert_eq!((finished_tasks(&mut waiters), semaphore.waiters()), (vec![], 3));
    drop(permit);
    assert!(semaphore.try_acquire().is_none(), "a new caller does not overtake waiters");
    for first in [2, 0, 1] {
        run_until_idle(&mut waiters);
        let permit = waiters[first].take_output().unwrap().unwrap();
        assert_eq!(semaphore.in_flight(), 1);
        drop(permit);
    }
    assert_eq!((semaphore.in_flight(), semaphore.waiters()), (0, 0));
}

#[test]
fn queue_is_bounded_and_respects_deadlines() {
    let (semaphore, manual_clock) = semaphore(1, 2);
    let _permit = semaphore.try_acquire().unwrap();
    let patient = Waiter::new(1).deadline(Duration::from_millis(100));
    let mut waiters = [
        enqueue(&semaphore, patient),
        enqueue(&semaphore, Waiter::new(1)),
        enqueue(&semaphore, Waiter::new(1)),
    ];
    assert_eq!(waiters[2].take_output().unwrap().unwrap_err(), WaitError::QueueFull);
    advance(&manual_clock, 99);
    assert!(finished_tasks(&mut waiters[..2]).is_empty());
    advance(&manual_clock, 1);
    assert_eq!(finished_tasks(&mut waiters[..2]), [0]);
    assert_eq!(waiters[0].take_output().unwrap().unwrap_err(), WaitError::DeadlineExceeded);
    assert_eq!(semaphore.waiters(), 1);
}

#[test]
fn resize_wakes_waiters_and_rejects_impossible_ones() {
    let (semaphore, _manual_clock) = semaphore(2, 9);
    let permits = semaphore.try_acquire_many(2).unwrap();
    let mut waiters: Vec<_> = [1, 2, 1].map(|cost| enqueue(&semaphore, Waiter::new(cost))).into();
    assert_eq!(
        enqueue(&semaphore, Waiter::new(3)).take_output().unwrap().unwrap_err(),
        WaitError::ExceedsLimit
    );
    semaphore.resize(3).unwrap();
    assert_eq!(finished_tasks(&mut waiters), [0]);
    semaphore.resize(1).unwrap();
    assert_eq!(finished_tasks(&mut waiters), [0, 1], "the cost of two exceeds the new limit");
    assert_eq!(waiters[1].take_output().unwrap().unwrap_err(), WaitError::ExceedsLimit);
    drop(permits);
    assert_eq!(finished_tasks(&mut waiters), [0], "one slot is still in use");
    assert_eq!((semaphore.in_flight(), semaphore.limit()), (1, 1));
    drop(waiters[0].take_output());
    assert_eq!(finished_tasks(&mut waiters), [2]);
}

#[test]
fn zero_limit_is_rejected() {
    let zero = Semaphore::new(0).unwrap_err();
    assert_eq!(zero.to_string(), "the number of slots must not be zero; give a number above zero");
    let semaphore = Semaphore::new(u32::MAX).unwrap();
    assert!(semaphore.resize(0).is_err());
    assert_eq!(semaphore.limit(), u32::MAX);
    let _all = semaphore.try_acquire_many(u32::MAX).unwrap();
    assert!(semaphore.try_acquire().is_none());
}

#[test]
fn threads_never_exceed_the_limit() {
    let semaphore = Semaphore::new(3).unwrap();
    let (in_flight, max_in_flight, barrier) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(16));
    thread::scope(|scope| {
        for index in 0..16 {
            let (semaphore, in_flight, max_in_flight, barrier) =
                (&semaphore, &in_flight, &max_in_flight, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for iteration in 0..500 {
                    let permit = match (index + iteration) % 2 {
                        0 => semaphore.try_acquire(),
                        _ => semaphore.acquire_blocking(Waiter::new(1)).ok(),
                    };
                    if permit.is_some() {
                        max_in_flight
                            .fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&max_in_flight.into_inner()));
    assert_eq!((semaphore.in_flight(), semaphore.waiters()), (0, 0));
}

/// A key that finds the table full waits until its deadline: a cell becomes free when another key releases its permit.
#[test]
fn waiter_without_cell_waits_until_deadline() {
    let (clock, manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).build("1 at once").unwrap();
    let mut permits: Vec<_> = (0..1_000).map(|key| limiter.blocking().key(&key).permit()).collect();
    permits.retain(|permit| permit.decision().is_granted());
    assert!(permits.len() < 1_000, "the table is full");
    let waiter = Waiter::new(1).deadline(Duration::from_secs(10));
    let bucket = limiter.key("late");
    let mut waiters = [TestTask::new(bucket.permit_queued(waiter))];
    assert!(finished_tasks(&mut waiters).is_empty(), "a cell may become free before the deadline");
    drop(permits);
    advance(&manual_clock, 1_000);
    assert!(waiters[0].poll_if_woken() && waiters[0].take_output().unwrap().is_ok());
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
    fn permits_are_conserved_in_any_order(ops in prop::collection::vec(semaphore_op(), 1..60)) {
        let (semaphore, manual_clock) = semaphore(3, 5);
        let mut borrowed: Vec<(u32, SemaphorePermit<&Semaphore>)> = Vec::new();
        let mut waiters: Vec<(u32, TestTask<'static, PermitResult>)> = Vec::new();
        // A permit that a waiter got outlives the borrow.
        let mut owned: Vec<(u32, SemaphorePermit)> = Vec::new();
        for op in ops {
            let before = semaphore.in_flight();
            match op {
                SemaphoreOp::Acquire(count) => {
                    let is_free = before + count <= semaphore.limit() && semaphore.waiters() == 0;
                    let permit = semaphore.try_acquire_many(count);
                    prop_assert_eq!(permit.is_some(), is_free);
                    borrowed.extend(permit.map(|permit| (count, permit)));
                }
                SemaphoreOp::Wait { cost, priority, deadline } => {
                    let waiter = Waiter {
                        deadline: deadline.map(Duration::from_millis),
                        ..Waiter::new(cost).priority(WaitPriority(priority))
                    };
                    waiters.push((cost as u32, enqueue(&semaphore, waiter)));
                }
                SemaphoreOp::Release(index) if !borrowed.is_empty() => drop(borrowed.remove(index % borrowed.len())),
                SemaphoreOp::Release(index) if !owned.is_empty() => drop(owned.remove(index % owned.len())),
                SemaphoreOp::Cancel(index) if !waiters.is_empty() => drop(waiters.remove(index % waiters.len())),
                SemaphoreOp::Release(_) | SemaphoreOp::Cancel(_) => {}
                SemaphoreOp::Panic => {
                    let _ = catch_unwind(AssertUnwindSafe(|| {
                        let _permit = semaphore.try_acquire();
                        std::panic::resume_unwind(Box::new("work failed"));
                    }));
                }
                SemaphoreOp::Resize(limit) => semaphore.resize(limit).unwrap(),
                SemaphoreOp::AdvanceTime(millis) => advance(&manual_clock, millis),
            }
            while waiters.iter_mut().map(|(_, task)| task.poll_if_woken()).filter(|woken| *woken).count() > 0 {}
            waiters.retain_mut(|(cost, task)| match task.take_output() {
                Some(end) => {
                    owned.extend(end.ok().map(|permit| (*cost, permit)));
                    false
                }
                None => true,
            });

            let total: u32 = borrowed.iter().map(|(count, _)| count).chain(owned.iter().map(|(count, _)| count)).sum();
            prop_assert_eq!(semaphore.in_flight(), total, "in flight equals the acquired permits");
            prop_assert!(total <= semaphore.limit().max(before), "a grant never exceeds the limit");
            prop_assert_eq!(semaphore.waiters() as usize, waiters.len());
            // The first waiter does not wait for free permits.
            if let Some(largest) = waiters.iter().map(|(cost, _)| *cost).max() {
                prop_assert!(total + largest > semaphore.limit() || waiters.len() > 1);
            }
        }
        drop((borrowed, owned, waiters));
        prop_assert_eq!((semaphore.in_flight(), semaphore.waiters()), (0, 0));
    }
}

/// The model of one key of a concurrency limiter.
#[derive(Default)]
struct KeyPermits<'a> {
    permits: Vec<Permit>,
    waiters: Vec<TestTask<'a, Result<Permit, WaitError>>>,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The same for permits of keys, which share only the limit: a change of it affects all.
    #[test]
    fn key_permits_are_conserved_in_any_order(
        ops in prop::collection::vec((semaphore_op(), 0..2_usize), 1..60),
    ) {
        let (clock, manual_clock) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).capacity(Capacity::Keys(4)).build("3 at once").unwrap();
        let (limiter, mut limit) = (&limiter, 3);
        let mut keys = [KeyPermits::default(), KeyPermits::default()];
        for (op, key) in ops {
            let bucket = limiter.blocking().key(["alice", "bob"][key]);
            let KeyPermits { permits, waiters } = &mut keys[key];
            let before = permits.len();
            match op {
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
                        std::panic::resume_unwind(Box::new("work failed"));
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
                waiters.retain_mut(|task| match task.take_output() {
                    Some(end) => {
                        permits.extend(end.ok());
                        false
                    }
                    None => true,
                });
                let decision = limiter.blocking().key(["alice", "bob"][key]).peek(0);
                prop_assert_eq!(decision.remaining() as usize, limit.saturating_sub(permits.len()));
                prop_assert!(waiters.is_empty() || permits.len() >= limit, "no caller waits for a free permit");
            }
        }
        drop(keys);
        prop_assert_eq!(limiter.stats().unwrap().live, 0);
    }
}
