//! The shell of triage: nothing leaks, threads agree, and a controller sets the number of slots.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

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
    Pass, PriorityLimit, Rejection,
    adaptive::{Anchored, Bounds},
    priority::{Arrival, Class, Shed},
};

fn classes() -> [Class; 2] {
    [Class::new("user", "50%".parse().unwrap()), Class::new("batch", "20%".parse().unwrap())]
}

#[test]
fn passes_give_their_slots_back_however_they_end() {
    let limit = PriorityLimit::new(classes(), 3).unwrap();
    let arrival = Arrival::of(0);
    limit.try_pass(arrival).unwrap().succeed();
    limit.try_pass(arrival).unwrap().fail();
    drop(limit.try_pass(arrival).unwrap());
    let panic = catch_unwind(AssertUnwindSafe(|| {
        let _pass = limit.try_pass(arrival).unwrap();
        std::panic::resume_unwind(Box::new("at work"));
    }));
    assert!(panic.is_err());
    assert_eq!(limit.in_flight_of(0), 0);
    let all: Vec<_> = std::iter::from_fn(|| limit.try_pass(arrival).ok()).collect();
    assert_eq!((all.len(), limit.try_pass(arrival).unwrap_err()), (3, Rejection::Outranked(Shed::Full)));
    assert!(limit.resize(0).is_err());
    limit.resize(4).unwrap();
    assert!(limit.try_pass(arrival).is_ok());
}

#[test]
fn sixteen_threads_never_hold_more_than_there_is() {
    let limit = PriorityLimit::new(classes(), 5).unwrap();
    let (inside, most, barrier) = (AtomicU32::new(0), AtomicU32::new(0), Barrier::new(16));
    thread::scope(|scope| {
        for index in 0..16_usize {
            let (limit, inside, most, barrier) = (&limit, &inside, &most, &barrier);
            scope.spawn(move || {
                barrier.wait();
                for turn in 0..1_000_u64 {
                    let arrival = Arrival::of(index % 2).level(turn as u8 % 3).user(limit.user(&turn));
                    if let Ok(pass) = limit.try_pass(arrival) {
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        pass.succeed();
                    }
                }
            });
        }
    });
    assert!((1..=5).contains(&most.into_inner()));
    assert_eq!((limit.in_flight_of(0), limit.in_flight_of(1)), (0, 0));
}

#[test]
fn a_controller_takes_slots_away_under_pressure_and_the_less_important_feel_it() {
    let (clock, hand) = Clock::manual();
    let controller = Anchored::new(Micros::from_millis(100)).unwrap();
    let controller = controller.bounds(Bounds::new(4, 20, 40).unwrap());
    let limit = PriorityLimit::builder(classes()).clock(clock).build_adaptive(controller).unwrap();
    let (mut users, mut batches) = (0, 0);
    for _ in 0..200 {
        let mut passes: Vec<_> = (0..40).filter_map(|_| limit.try_pass(Arrival::of(1)).ok()).collect();
        batches = passes.len();
        passes.extend((0..3).filter_map(|_| limit.try_pass(Arrival::of(0)).ok()));
        users = passes.len() - batches;
        hand.advance(Duration::from_millis(150));
        passes.into_iter().for_each(Pass::succeed);
    }
    assert_eq!(limit.limit(), 4, "everything takes too long");
    assert_eq!((users, batches), (3, 0), "all users; what is left is kept for one more of them");
}

/// Slots that are kept for one class are not taken, and yet there are too few: those who are refused say so.
#[test]
fn a_limit_that_was_cut_grows_again_though_some_of_it_is_kept_free() {
    let (clock, hand) = Clock::manual();
    let controller = Anchored::new(Micros::from_millis(100)).unwrap();
    let controller = controller.bounds(Bounds::new(4, 20, 40).unwrap());
    let limit = PriorityLimit::builder(classes()).clock(clock).build_adaptive(controller).unwrap();
    for latency in [150, 10] {
        for _ in 0..400 {
            let mut passes: Vec<_> = (0..3).filter_map(|_| limit.try_pass(Arrival::of(0)).ok()).collect();
            passes.extend((0..20).filter_map(|_| limit.try_pass(Arrival::of(1)).ok()));
            hand.advance(Duration::from_millis(latency));
            passes.into_iter().for_each(Pass::succeed);
        }
    }
    assert!(limit.limit() > 20, "the backend is fast again, and calls are refused: {limit:?}");
}
