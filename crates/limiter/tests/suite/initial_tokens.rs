//! Buckets with initial tokens in memory: every way to check a new key starts its refill, and what a key has does not depend
//! on whether its cell was reused.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::time::Duration;
use tidegate_core::{CarryOver, Micros};
use tidegate_limiter::{BlockingLimiter, Capacity, Clock, DirectLimiter, Limiter, ManualClock, Overflow};

const QUOTA: &str = "60/min burst 10 initial 0";

fn build(quotas: &[&str], keys: u64) -> (Limiter, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000_000));
    let quotas: Vec<_> = quotas.iter().map(|quota| quota.parse().unwrap()).collect();
    let builder = Limiter::builder().clock(clock).capacity(Capacity::Keys(keys)).overflow(Overflow::Deny);
    (builder.build_all(&quotas).unwrap(), manual_clock)
}

fn remaining(limiter: &Limiter, key: &str) -> u64 {
    limiter.blocking().key(key).peek(0).remaining()
}

#[test]
fn each_kind_of_check_starts_the_refill_of_a_new_key() {
    type Check = fn(&Limiter);
    let checks: [(&str, Check); 5] = [
        ("check", |limiter| assert!(!limiter.check("a").is_allowed())),
        ("bucket", |limiter| assert!(!limiter.blocking().key("a").check(3).is_allowed())),
        ("reserve", |limiter| {
            assert!(!limiter.blocking().key("a").reserve(1, Duration::ZERO).decision().is_granted());
        }),
        ("take up to", |limiter| assert_eq!(limiter.blocking().key("a").take_up_to(5).0, 0)),
        ("batch", |limiter| {
            let other = Limiter::new("5/s").unwrap();
            let decisions = BlockingLimiter::decide_all(&[limiter.prepare("a"), other.prepare("x")]);
            assert!(!decisions[0].is_allowed());
            assert_eq!(other.blocking().key("x").peek(0).remaining(), 5, "nothing is charged");
        }),
    ];
    for quotas in [&[QUOTA] as &[&str], &[QUOTA, "1000/h"], &["1000/h sliding-window", QUOTA]] {
        for (name, check) in checks {
            let (limiter, manual_clock) = build(quotas, 8);
            check(&limiter);
            manual_clock.advance(Duration::from_secs(4));
            assert_eq!(remaining(&limiter, "a"), 4, "{name} under {quotas:?}");
            // A peek does not start it.
            assert_eq!(remaining(&limiter, "b"), 0);
            manual_clock.advance(Duration::from_secs(4));
            assert_eq!(remaining(&limiter, "b"), 0);
        }
    }
}

#[test]
fn direct_limiter_is_refilled_from_its_creation_on() {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000_000));
    let limiter = DirectLimiter::builder().clock(clock).build(QUOTA).unwrap();
    manual_clock.advance(Duration::from_secs(3));
    assert_eq!(limiter.check_cost(3).remaining(), 0);
    assert_eq!(limiter.check().retry_after(), Some(Micros::from_secs(1)));
}

/// An hour after it is full a key is new. Cells are reused earlier or later, which must not change this.
#[test]
fn idle_key_has_the_same_tokens_in_an_empty_and_in_a_crowded_table() {
    for (idle, expected) in [(5, 5), (10, 10), (600, 10), (3_610, 10), (3_611, 0), (100_000, 0)] {
        for crowd in [0, 20_u64] {
            let (limiter, manual_clock) = build(&[QUOTA], 1);
            assert!(!limiter.check("a").is_allowed());
            manual_clock.advance(Duration::from_secs(idle));
            // They take every cell that may be reused.
            for key in 0..crowd {
                let _ = limiter.check(&key);
            }
            if crowd == 0 || expected > 0 {
                let left = limiter.check_cost("a", expected.max(1)).is_allowed();
                assert_eq!(
                    (left, remaining(&limiter, "a")),
                    (expected > 0, 0),
                    "after {idle} s beside {crowd}"
                );
            } else {
                assert!(!limiter.check("a").is_allowed(), "new, or without a cell");
            }
        }
    }
}

#[test]
fn change_between_plain_and_initial_tokens_preserves_usage() {
    let (limiter, manual_clock) = build(&["60/min burst 10"], 8);
    assert!(limiter.check_cost("a", 4).is_allowed());
    // One word is not enough for initial tokens: the limiter is replaced.
    assert!(limiter.change(QUOTA, CarryOver::Keep).is_err());
    let (clock, next_clock) = Clock::manual();
    next_clock.set(Micros::from_secs(1_000_000));
    let next = Limiter::builder()
        .clock(clock)
        .capacity(Capacity::Keys(8))
        .predecessor(&limiter)
        .build(QUOTA)
        .unwrap();
    next.take_over(&limiter);
    assert_eq!((remaining(&next, "a"), remaining(&next, "b")), (6, 0));
    drop(manual_clock);
    next.change("60/min burst 10 initial 5", CarryOver::Keep).unwrap();
    assert_eq!((remaining(&next, "a"), remaining(&next, "b")), (6, 5));
}
