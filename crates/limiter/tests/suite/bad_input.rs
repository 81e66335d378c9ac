//! Invalid settings, keys, costs and times: an error or a correct decision, never a panic, never a hang.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::time::Duration;
use tidegate_core::{CarryOver, Decision, Micros, Outcome, Quota, Retry};
use tidegate_limiter::{
    BlockingBucket, BlockingLimiter, BuildError, Capacity, Clock, DirectLimiter, KeyPair, Limiter,
    ManualClock, WaitError, Waiter,
};

/// One quota of each algorithm, and the token bucket in several words.
const ALL_QUOTAS: [&str; 11] = [
    "10/s burst 5",
    "10000000007/s burst 5",
    "10/s leaky-bucket queue 4 delay 2",
    "5/s fixed-window",
    "5/s fixed-window from-first-hit",
    "5/s sliding-window",
    "5/s sliding-strict 10",
    "5/s sliding-log",
    "5/s smooth",
    "5/s warm-up 4s",
    "5 at once",
];

fn build_limiter(quota: &str) -> (Limiter, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (Limiter::builder().clock(clock).capacity(Capacity::Keys(16)).build(quota).unwrap(), manual_clock)
}

fn build_error(capacity: Capacity, quota: &str) -> BuildError {
    match Limiter::builder().capacity(capacity).build(quota) {
        Ok(limiter) => panic!("{capacity:?} made {:?}", limiter.stats().unwrap()),
        Err(error) => error,
    }
}

#[test]
fn invalid_capacity_is_an_error() {
    assert_eq!(build_error(Capacity::Keys(0), "1/s"), BuildError::ZeroCapacity);
    for keys in [1 << 48, 1 << 56, 1 << 60, 1 << 63, u64::MAX] {
        for quota in ["1/s", "131072/s sliding-log"] {
            let error = build_error(Capacity::Keys(keys), quota);
            assert!(
                matches!(error, BuildError::OutOfMemory { keys: requested, bytes } if requested == keys && bytes >= keys)
            );
            assert!(error.to_string().contains(&keys.to_string()));
        }
    }
    assert!(matches!(build_error(Capacity::Bytes(u64::MAX), "1/s"), BuildError::OutOfMemory { .. }));
    // Too few bytes for one key still hold one.
    let tiny = Limiter::builder().capacity(Capacity::Bytes(0)).build("1/s").unwrap();
    assert!(tiny.check("a").is_allowed() && !tiny.check("a").is_granted());
}

#[test]
fn invalid_quota_is_an_error() {
    for text in ["", "0/s", "-1/s", "NaN/s", "1/s burst 0", "9007199254740992/s", "1 per 999999999w", "🦀"]
    {
        assert!(matches!(Limiter::new(text), Err(BuildError::Quota(_))), "{text}");
        assert!(matches!(DirectLimiter::new(text), Err(BuildError::Quota(_))), "{text}");
    }
    assert_eq!(Limiter::builder().build_all(&[]).err(), Some(BuildError::NoQuota));
    assert_eq!(Limiter::builder().build_tiers(&[]).err(), Some(BuildError::NoQuota));
    let mixed: Vec<Quota> = ["1/s", "1/s sliding-log"].iter().map(|text| text.parse().unwrap()).collect();
    assert!(matches!(Limiter::builder().build_tiers(&mixed), Err(BuildError::MixedTiers { .. })));
    // A quota that is built in code needs no parsing.
    assert!(Limiter::new(Quota::per_second(3).token_bucket(1).unwrap()).is_ok());
    assert!(DirectLimiter::new(Quota::concurrency(3).unwrap()).is_ok());
}

#[test]
fn any_key_is_accepted() {
    for quota in ALL_QUOTAS {
        let (limiter, _manual_clock) = build_limiter(quota);
        let giant = "k".repeat(1 << 20);
        assert!(limiter.check("").is_allowed() && limiter.check(&giant).is_allowed());
        assert!(limiter.check(" ").is_allowed() && limiter.check(&0_u8).is_allowed());
        assert!(limiter.check(&KeyPair(u128::MAX, KeyPair("💧", f64::NAN.to_bits()))).is_allowed());
        assert_eq!(limiter.blocking().key(&giant).peek(0), limiter.blocking().key(giant.as_str()).peek(0));
    }
}

/// All operations of a bucket, with one cost. None of them waits, because the clock does not advance.
fn run_all_operations(bucket: &BlockingBucket<'_>, cost: u64) -> Vec<Decision> {
    let commits = [0, 1, cost / 2, cost, u64::MAX];
    let mut decisions = vec![bucket.check(cost), bucket.peek(cost), bucket.check_with_overdraft(cost)];
    decisions.push(bucket.take_up_to(cost).1);
    for actual in commits {
        let tokens = bucket.reserve(cost, Duration::MAX);
        let second = bucket.reserve(cost, Duration::ZERO);
        let _wait = tokens.wait();
        decisions.extend([*tokens.decision(), *second.decision()]);
        tokens.commit(actual);
        second.cancel();
    }
    decisions.push(bucket.try_acquire(cost, Duration::ZERO));
    decisions.push(*bucket.permit().decision());
    if let Err(error) = bucket.acquire_queued(Waiter::new(cost).deadline(Duration::ZERO)) {
        assert!(matches!(error, WaitError::DeadlineExceeded | WaitError::ExceedsLimit));
    }
    bucket.reset().unwrap();
    decisions.push(bucket.peek(cost));
    decisions
}

#[test]
fn any_cost_is_decided_at_any_time() {
    for quota in ALL_QUOTAS {
        for start in [0, 1, 1_750_000_000_000_000, Micros::MAX.get() - 1, Micros::MAX.get()] {
            let (clock, manual_clock) = Clock::manual();
            manual_clock.set(Micros::new(start));
            let limiter = Limiter::builder().clock(clock.clone()).build(quota).unwrap();
            let direct = DirectLimiter::builder().clock(clock).build(quota).unwrap();
            for cost in [0, 1, 5, 6, 1 << 32, (1 << 53) - 1, 1 << 53, u64::MAX - 1, u64::MAX] {
                for bucket in [limiter.blocking().key("k"), direct.blocking()] {
                    for decision in run_all_operations(&bucket, cost) {
                        assert!(decision.limit() >= 1, "{quota}: {decision:?}");
                        let _shown = (decision.to_string(), format!("{decision:?}"));
                    }
                }
                limiter.check_cost("k", cost);
                direct.check_cost(cost);
                BlockingLimiter::decide_all(&[
                    limiter.prepare("k").cost(cost),
                    limiter.prepare("k").cost(u64::MAX),
                ]);
                manual_clock.advance(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn cost_over_burst_needs_overdraft() {
    for quota in ALL_QUOTAS {
        let (limiter, manual_clock) = build_limiter(quota);
        manual_clock.set(Micros::from_secs(100));
        let key = limiter.blocking().key("k");
        let limit = key.peek(0).limit();
        let shapes = quota.contains("smooth") || quota.contains("warm-up");
        let expected = if shapes { Outcome::Allow } else { Outcome::Deny(Retry::Never) };
        assert_eq!(key.peek(limit + 1).outcome(), expected, "{quota}");
        if quota.ends_with("at once") {
            assert_eq!(key.check_with_overdraft(limit + 1).outcome(), expected, "a slot allows no overdraft");
            continue;
        }
        assert!(key.check_with_overdraft(limit * 3).is_allowed(), "{quota}");
        assert!(!key.check(1).is_granted(), "{quota}: the overdraft is repaid first");
        manual_clock.advance(Duration::from_secs(60));
        assert!(key.check(1).is_allowed(), "{quota}");
    }
}

#[test]
fn zero_cost_takes_nothing() {
    for quota in ALL_QUOTAS {
        let (limiter, _manual_clock) = build_limiter(quota);
        let key = limiter.blocking().key("k");
        let before = key.peek(0);
        for _ in 0..20 {
            assert!(key.check(0).is_allowed() && key.reserve(0, Duration::MAX).keep().is_allowed());
            assert_eq!(key.take_up_to(0).0, 0);
        }
        assert_eq!(key.peek(0), before, "{quota}");
    }
}

/// A denied reservation has nothing to settle, and nothing to wait for.
#[test]
fn denied_reservation_settles_nothing() {
    for quota in ALL_QUOTAS {
        let (limiter, manual_clock) = build_limiter(quota);
        manual_clock.set(Micros::from_secs(50));
        let key = limiter.blocking().key("k");
        let limit = key.peek(0).limit();
        // No slots and no tokens are left.
        let _permits: Vec<_> = (0..limit).map(|_| key.permit()).collect();
        key.check_with_overdraft(limit);
        let before = key.peek(1);
        assert!(!before.is_granted(), "{quota}");
        for actual in [0, 1, limit, u64::MAX] {
            let denied = key.reserve(1, Duration::ZERO);
            assert_eq!(denied.wait(), Duration::ZERO, "{quota}");
            denied.commit(actual);
            assert_eq!(key.peek(1), before, "{quota}: {actual}");
        }
    }
}

/// A limiter created at time zero still counts today, and at the maximum time.
#[test]
fn clock_leap_keeps_decisions_valid() {
    // The last one drains the maximum for one word: after 17 years its time stops, and it allows.
    for quota in ALL_QUOTAS.iter().filter(|quota| !quota.ends_with("at once")).chain(&["4095/us burst 5"]) {
        let (limiter, manual_clock) = build_limiter(quota);
        for leap in [1, 1_750_000_000, 8_000_000_000] {
            manual_clock.set(Micros::from_secs(leap));
            assert!(limiter.check("k").is_allowed(), "{quota} at {leap}s");
            limiter.check_cost("k", 5);
        }
    }
}

#[test]
fn incompatible_change_is_rejected() {
    for (old, new) in [
        ("10/s", "10/s sliding-log"),
        ("10/s", "3 at once"),
        ("3 at once", "10/s"),
        ("10/s", "10000000007/s burst 10"),
        ("10/s", "10/s leaky-bucket queue 5"),
        ("10/s sliding-window", "10/s fixed-window"),
        ("10/s smooth", "10/s warm-up 4s cold 3"),
        ("10/s sliding-log", "11/s sliding-log"),
        ("10/s sliding-strict 2", "10/s sliding-strict 4"),
    ] {
        let (limiter, _manual_clock) = build_limiter(old);
        limiter.check_cost("k", 2);
        let before = limiter.blocking().key("k").peek(1);
        let error = limiter.change(new, CarryOver::Reset).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("cannot change `{old}` to `{new}` at run time; build a new limiter")
        );
        assert_eq!(
            (limiter.blocking().key("k").peek(1), limiter.quotas()[0].to_string()),
            (before, old.to_owned())
        );
        let direct = DirectLimiter::builder().clock(Clock::manual().0).build(old).unwrap();
        assert!(direct.change(new, CarryOver::Reset).is_err());
        assert!(matches!(direct.change("0/s", CarryOver::Reset), Err(BuildError::Quota(_))));
        assert_eq!(direct.quota().to_string(), old);
    }
    let (limiter, _manual_clock) = build_limiter("10/s");
    let two: Vec<Quota> = ["10/s", "20/s"].iter().map(|text| text.parse().unwrap()).collect();
    assert!(limiter.change_all(&two, CarryOver::Keep).is_err());
    assert!(limiter.change_all(&[], CarryOver::Keep).is_err());
}

#[test]
fn unknown_tier_is_none() {
    let tiers: Vec<Quota> = ["1/s", "2/s"].iter().map(|text| text.parse().unwrap()).collect();
    let limiter = Limiter::builder().build_tiers(&tiers).unwrap();
    assert_eq!(limiter.tiers(), 2);
    assert!(limiter.blocking().key("k").tier(1).is_some());
    assert!(
        limiter.blocking().key("k").tier(2).is_none()
            && limiter.blocking().key("k").tier(usize::MAX).is_none()
    );
    let (plain, _manual_clock) = self::build_limiter("1/s");
    assert!(plain.blocking().key("k").tier(0).is_some() && plain.blocking().key("k").tier(1).is_none());
    assert!(DirectLimiter::new("1/s").unwrap().blocking().tier(0).is_none());
}

#[test]
fn zero_max_waiters_rejects_waiters() {
    let builder = Limiter::builder().clock(Clock::manual().0).max_waiters(0);
    let limiter = builder.waiter_ttl(Duration::ZERO).build("1/s").unwrap();
    let result = limiter.blocking().key("k").acquire_queued(Waiter::new(1));
    assert_eq!(result, Err(WaitError::QueueFull));
}
