//! Reservations on several limiters: all or nothing, and each can be refunded.

#![cfg(feature = "tokio")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use proptest::{prelude::*, test_runner::TestCaseResult};
use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::{Decision, Micros, Quota};
use tidegate_limiter::{BlockingLimiter, Capacity, Check, Clock, CombinedReservation, Limiter};
use tidegate_testkit::strategy::runner;

fn quotas(texts: &[&str]) -> Vec<Quota> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn reserve_all(checks: &[Check]) -> Vec<CombinedReservation> {
    BlockingLimiter::reserve_all(checks).into_iter().flatten().collect()
}

fn all_granted(reservations: &[CombinedReservation]) -> bool {
    reservations.iter().all(|reservation| reservation.decision().is_granted())
}

/// The limiter, the key, the tier, the cost.
type CheckParams = (usize, u64, usize, u64);

/// What happens to a granted reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationEnd {
    Dropped,
    CommittedInFull,
    CommittedByHalf,
}

/// One word, several words, slots, slots beside a rate, tiers; keys and limiters may repeat.
#[test]
fn denied_batch_changes_nothing_and_dropped_batch_restores_all() {
    let check = (0_usize..5, 0_u64..2, 0_usize..2, 0_u64..4);
    let ends = prop_oneof![
        Just(ReservationEnd::Dropped),
        Just(ReservationEnd::CommittedInFull),
        Just(ReservationEnd::CommittedByHalf)
    ];
    let steps = proptest::collection::vec((0_u64..400, proptest::collection::vec(check, 1..6), ends), 1..30);
    let law = |steps: Vec<(u64, Vec<CheckParams>, ReservationEnd)>| -> TestCaseResult {
        let (clock, manual_clock) = Clock::manual();
        let builder = || Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
        let limiters = [
            builder().build("10/s burst 7").unwrap(),
            builder().build("6/s sliding-log").unwrap(),
            builder().build("4 at once").unwrap(),
            builder().build_all(&quotas(&["9/s", "3 at once"])).unwrap(),
            builder().build_tiers(&quotas(&["3/s", "8/s"])).unwrap(),
        ];
        let peek_all = || -> Vec<Decision> {
            let keys = limiters.iter().flat_map(|limiter| (0..2_u64).map(move |key| (limiter, key)));
            keys.map(|(limiter, key)| limiter.blocking().key(&key).peek(0)).collect()
        };
        let mut now = Micros::ZERO;
        for (pause, params, end) in steps {
            now = now.saturating_add(Micros::from_millis(pause));
            manual_clock.set(now);
            let before = peek_all();
            let prepare = |(which, key, tier, cost): &CheckParams| {
                limiters[*which].prepare(key).cost(*cost).tier(*tier)
            };
            let checks: Vec<_> = params.iter().map(prepare).collect();
            let reservations = reserve_all(&checks);
            if !all_granted(&reservations) {
                prop_assert_eq!(peek_all(), before, "{:?} at {}", params, now);
                continue;
            }
            match end {
                ReservationEnd::Dropped => {
                    drop(reservations);
                    prop_assert_eq!(peek_all(), before, "{:?} at {}", params, now);
                }
                ReservationEnd::CommittedInFull | ReservationEnd::CommittedByHalf => {
                    for (reservation, params) in reservations.into_iter().zip(&params) {
                        let (tokens, slots) = reservation.into_parts();
                        let half =
                            if end == ReservationEnd::CommittedByHalf { params.3 / 2 } else { params.3 };
                        if let Some(tokens) = tokens {
                            tokens.commit(half);
                        }
                        drop(slots);
                    }
                    // Slots are released independently of the tokens beside them.
                    for key in 0..2_u64 {
                        prop_assert_eq!(limiters[2].blocking().key(&key).peek(0).remaining(), 4);
                    }
                }
            }
        }
        Ok(())
    };
    runner().run(&steps, law).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn tokens_and_slots_settle_separately() {
    let both = Limiter::builder().build_all(&quotas(&["5/h", "1 at once"])).unwrap();
    let reserve = || reserve_all(&[both.prepare("job")]).pop().unwrap();
    let (tokens, slots) = reserve().into_parts();
    tokens.unwrap().commit(0);
    assert!(!reserve().decision().is_granted(), "the slot is still in use");
    drop(slots);
    let (tokens, slots) = reserve().into_parts();
    drop(slots);
    tokens.unwrap().keep();
    assert_eq!(both.blocking().key("job").peek(0).remaining(), 1);
    assert_eq!(reserve().decision().quota(), 1, "four tokens are left, and one slot");
}

#[test]
fn batch_wait_is_all_or_nothing() {
    let (clock, _manual_clock) = Clock::manual();
    let build = |quota: &str| Limiter::builder().clock(clock.clone()).build(quota).unwrap();
    let (slow, fast) = (build("1/s burst 1"), build("10/s burst 1"));
    let reserve = |max_wait: u64| {
        let max_wait = Duration::from_millis(max_wait);
        let checks = [slow.prepare("k").max_wait(max_wait), fast.prepare("k").max_wait(max_wait)];
        reserve_all(&checks)
    };
    let waits = |reservations: &[CombinedReservation]| {
        reservations.iter().map(|reservation| reservation.decision().wait().get()).collect::<Vec<_>>()
    };
    let first = reserve(0);
    assert!(all_granted(&first));
    let second = reserve(2_000);
    assert_eq!(waits(&second), [1_000_000, 100_000]);
    assert!(!all_granted(&reserve(1_500)), "a third would have to wait for two seconds");
    drop(second);
    assert_eq!(waits(&reserve(1_500)), [1_000_000, 100_000], "the next call gets the refunded time");
    drop(first);
}

/// Threads that reserve in opposite orders do not deadlock, and no limit is exceeded.
#[test]
fn contending_threads_stay_within_slot_limits() {
    const THREADS: usize = 8;
    let build = |quota: &str| Limiter::builder().build(quota).unwrap();
    let (left, right, rate) = (build("3 at once"), build("2 at once"), build("1000000/s"));
    let (barrier, in_flight, max_in_flight) = (Barrier::new(THREADS), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (left, right, rate, barrier, in_flight, max_in_flight) =
                (&left, &right, &rate, &barrier, &in_flight, &max_in_flight);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..2_000 {
                    let mut checks = vec![left.prepare("k"), rate.prepare("k"), right.prepare("k")];
                    if thread % 2 == 0 {
                        checks.reverse();
                    }
                    let reservations = reserve_all(&checks);
                    if all_granted(&reservations) {
                        max_in_flight
                            .fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        in_flight.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!((1..=2).contains(&max_in_flight.load(Ordering::SeqCst)));
    let remaining = |limiter: &Limiter| limiter.blocking().key("k").peek(0).remaining();
    assert_eq!((remaining(&left), remaining(&right)), (3, 2), "everything is released");
}
