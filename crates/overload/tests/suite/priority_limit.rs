//! The thread-safe priority limit: no leaks, no races, and a controller that sets the number of slots.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Barrier,
        atomic::{AtomicU32, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_overload::{
    CallPermit, PriorityLimit, Rejection,
    adaptive::{Bounds, LatencyTarget},
    priority::{PriorityClass, PriorityRequest, ShedReason},
};

fn classes() -> [PriorityClass; 2] {
    [PriorityClass::new("user", "50%".parse().unwrap()), PriorityClass::new("batch", "20%".parse().unwrap())]
}

#[test]
fn permits_release_slots_on_every_outcome() {
    let limit = PriorityLimit::new(classes(), 3).unwrap();
    let request = PriorityRequest::new(0);
    limit.try_acquire(request).unwrap().succeed();
    limit.try_acquire(request).unwrap().fail();
    drop(limit.try_acquire(request).unwrap());
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _permit = limit.try_acquire(request).unwrap();
        std::panic::resume_unwind(Box::new("at work"));
    }));
    assert!(panic.is_err());
    assert_eq!(limit.in_flight_of(0), 0);
    let all: Vec<_> = std::iter::from_fn(|| limit.try_acquire(request).ok()).collect();
    assert_eq!(
        (all.len(), limit.try_acquire(request).unwrap_err()),
        (3, Rejection::PriorityShed(ShedReason::LimitReached))
    );
    assert!(limit.resize(0).is_err());
    limit.resize(4).unwrap();
    assert!(limit.try_acquire(request).is_ok());
}

#[test]
fn concurrent_permits_stay_within_limit() {
    let limit = PriorityLimit::new(classes(), 5).unwrap();
    let (inside, max, barrier) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(16));
    thread::scope(|scope| {
        for index in 0..16_usize {
            let (limit, inside, max, barrier) = (&limit, &inside, &max, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for round in 0..1_000_u64 {
                    let request =
                        PriorityRequest::new(index % 2).level(round as u8 % 3).user(limit.hash_user(&round));
                    if let Ok(permit) = limit.try_acquire(request) {
                        max.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        permit.succeed();
                    }
                }
            });
        }
    });
    assert!((1..=5).contains(&max.into_inner()));
    assert_eq!((limit.in_flight_of(0), limit.in_flight_of(1)), (0, 0));
}

#[test]
fn controller_shrinks_limit_and_low_class_is_shed() {
    let (clock, manual_clock) = Clock::manual();
    let controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    let controller = controller.bounds(Bounds::new(4, 20, 40).unwrap());
    let limit = PriorityLimit::builder(classes()).clock(clock).build_adaptive(controller).unwrap();
    let (mut users, mut batches) = (0, 0);
    for _ in 0..200 {
        let mut permits: Vec<_> =
            (0..40).filter_map(|_| limit.try_acquire(PriorityRequest::new(1)).ok()).collect();
        batches = permits.len();
        permits.extend((0..3).filter_map(|_| limit.try_acquire(PriorityRequest::new(0)).ok()));
        users = permits.len() - batches;
        manual_clock.advance(Duration::from_millis(150));
        permits.into_iter().for_each(CallPermit::succeed);
    }
    assert_eq!(limit.limit(), 4, "all calls exceed the target");
    assert_eq!((users, batches), (3, 0), "all users; the last slot is reserved for one more of them");
}

/// Reserved slots are not in use, yet there are too few slots: the shed requests show it.
#[test]
fn reduced_limit_grows_with_reserved_slots() {
    let (clock, manual_clock) = Clock::manual();
    let controller = LatencyTarget::new(Micros::from_millis(100)).unwrap();
    let controller = controller.bounds(Bounds::new(4, 20, 40).unwrap());
    let limit = PriorityLimit::builder(classes()).clock(clock).build_adaptive(controller).unwrap();
    for latency in [150, 10] {
        for _ in 0..400 {
            let mut permits: Vec<_> =
                (0..3).filter_map(|_| limit.try_acquire(PriorityRequest::new(0)).ok()).collect();
            permits.extend((0..20).filter_map(|_| limit.try_acquire(PriorityRequest::new(1)).ok()));
            manual_clock.advance(Duration::from_millis(latency));
            permits.into_iter().for_each(CallPermit::succeed);
        }
    }
    assert!(limit.limit() > 20, "the backend is fast again, and calls are shed: {limit:?}");
}
