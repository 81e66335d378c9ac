//! Claims on several limiters at once: all or nothing, and each can be given back.

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

fn all_granted(claims: &[CombinedReservation]) -> bool {
    claims.iter().all(|claim| claim.decision().is_granted())
}

/// Which limiter, which key, which tier, how much.
type CheckParams = (usize, u64, usize, u64);

/// What becomes of a claim that was granted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReservationEnd {
    Dropped,
    Kept,
    Halved,
}

/// One word, several words, slots, slots beside a rate, tiers; keys and limiters may repeat.
#[test]
fn denied_batch_changes_nothing_and_dropped_batch_restores_all() {
    let ask = (0_usize..5, 0_u64..2, 0_usize..2, 0_u64..4);
    let ends =
        prop_oneof![Just(ReservationEnd::Dropped), Just(ReservationEnd::Kept), Just(ReservationEnd::Halved)];
    let story = proptest::collection::vec((0_u64..400, proptest::collection::vec(ask, 1..6), ends), 1..30);
    let law = |story: Vec<(u64, Vec<CheckParams>, ReservationEnd)>| -> TestCaseResult {
        let (clock, manual_clock) = Clock::manual();
        let builder = || Limiter::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
        let limiters = [
            builder().build("10/s burst 7").unwrap(),
            builder().build("6/s sliding-log").unwrap(),
            builder().build("4 at once").unwrap(),
            builder().build_all(&quotas(&["9/s", "3 at once"])).unwrap(),
            builder().build_tiers(&quotas(&["3/s", "8/s"])).unwrap(),
        ];
        let look = || -> Vec<Decision> {
            let keys = limiters.iter().flat_map(|limiter| (0..2_u64).map(move |key| (limiter, key)));
            keys.map(|(limiter, key)| limiter.blocking().key(&key).peek(0)).collect()
        };
        let mut now = Micros::ZERO;
        for (pause, questions, end) in story {
            now = now.plus(Micros::from_millis(pause));
            manual_clock.set(now);
            let before = look();
            let ask = |(which, key, tier, cost): &CheckParams| {
                limiters[*which].prepare(key).cost(*cost).tier(*tier)
            };
            let asks: Vec<_> = questions.iter().map(ask).collect();
            let claims = reserve_all(&asks);
            if !all_granted(&claims) {
                prop_assert_eq!(look(), before, "{:?} at {}", questions, now);
                continue;
            }
            match end {
                ReservationEnd::Dropped => {
                    drop(claims);
                    prop_assert_eq!(look(), before, "{:?} at {}", questions, now);
                }
                ReservationEnd::Kept | ReservationEnd::Halved => {
                    for (claim, question) in claims.into_iter().zip(&questions) {
                        let (tokens, slots) = claim.into_parts();
                        let half = if end == ReservationEnd::Halved { question.3 / 2 } else { question.3 };
                        if let Some(tokens) = tokens {
                            tokens.commit(half);
                        }
                        drop(slots);
                    }
                    // Slots come back whatever becomes of the tokens beside them.
                    for key in 0..2_u64 {
                        prop_assert_eq!(limiters[2].blocking().key(&key).peek(0).remaining(), 4);
                    }
                }
            }
        }
        Ok(())
    };
    runner().run(&story, law).unwrap_or_else(|broken| panic!("{broken}"));
}

#[test]
fn tokens_and_slots_settle_separately() {
    let both = Limiter::builder().build_all(&quotas(&["5/h", "1 at once"])).unwrap();
    let ask = || reserve_all(&[both.prepare("job")]).pop().unwrap();
    let (tokens, slots) = ask().into_parts();
    tokens.unwrap().commit(0);
    assert!(!ask().decision().is_granted(), "the slot is still held");
    drop(slots);
    let (tokens, slots) = ask().into_parts();
    drop(slots);
    tokens.unwrap().keep();
    assert_eq!(both.blocking().key("job").peek(0).remaining(), 1);
    assert_eq!(ask().decision().quota(), 1, "four tokens are left, and one slot");
}

#[test]
fn batch_wait_is_all_or_nothing() {
    let (clock, _manual_clock) = Clock::manual();
    let build = |quota: &str| Limiter::builder().clock(clock.clone()).build(quota).unwrap();
    let (slow, fast) = (build("1/s burst 1"), build("10/s burst 1"));
    let ask = |patience: u64| {
        let patience = Duration::from_millis(patience);
        let asks = [slow.prepare("k").max_wait(patience), fast.prepare("k").max_wait(patience)];
        reserve_all(&asks)
    };
    let waits = |claims: &[CombinedReservation]| {
        claims.iter().map(|claim| claim.decision().wait().get()).collect::<Vec<_>>()
    };
    let first = ask(0);
    assert!(all_granted(&first));
    let second = ask(2_000);
    assert_eq!(waits(&second), [1_000_000, 100_000]);
    assert!(!all_granted(&ask(1_500)), "a third would have to wait for two seconds");
    drop(second);
    assert_eq!(waits(&ask(1_500)), [1_000_000, 100_000], "and may have the turn of who gave it back");
    drop(first);
}

/// Whoever asks for both in the other order waits for nobody in a circle, and nobody is over the limit.
#[test]
fn contending_threads_stay_within_slot_limits() {
    const THREADS: usize = 8;
    let build = |quota: &str| Limiter::builder().build(quota).unwrap();
    let (left, right, rate) = (build("3 at once"), build("2 at once"), build("1000000/s"));
    let (barrier, inside, most) = (Barrier::new(THREADS), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (left, right, rate, barrier, inside, most) = (&left, &right, &rate, &barrier, &inside, &most);
            scope.spawn(move || {
                barrier.wait();
                for _ in 0..2_000 {
                    let mut asks = vec![left.prepare("k"), rate.prepare("k"), right.prepare("k")];
                    if thread % 2 == 0 {
                        asks.reverse();
                    }
                    let claims = reserve_all(&asks);
                    if all_granted(&claims) {
                        most.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    }
                }
            });
        }
    });
    assert!((1..=2).contains(&most.load(Ordering::SeqCst)));
    let remaining = |limiter: &Limiter| limiter.blocking().key("k").peek(0).remaining();
    assert_eq!((remaining(&left), remaining(&right)), (3, 2), "everything came back");
}
