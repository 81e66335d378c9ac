//! Defects of other limiters: rates that drift with the polling pattern, byte rates that are rounded, bursts that
//! are off by one, retry times of zero.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

use proptest::prelude::*;
use tidegate_core::{Demand, Micros, Outcome, Quota, Retry};
use tidegate_testkit::{CoreModel, Subject, strategy::runner};

const DAY: Micros = Micros::from_secs(86_400);

/// Takes all available tokens and returns their number.
fn take_all(key: &mut CoreModel, now: Micros) -> u64 {
    let remaining = key.peek(now, Demand::peek(0)).decision.remaining();
    assert!(key.decide(now, Demand::new(remaining)).decision.is_allowed());
    remaining
}

/// For any polling intervals, the number of granted tokens is exactly that of the rate.
#[test]
fn long_run_rate_is_exact_for_any_polling() {
    let texts = [
        "1/d burst 2",
        "7/d burst 3",
        "1/min burst 5",
        "3/s burst 3",
        "7 per 10s burst 9",
        "1000/s",
        "999983/s",
        "1000003/s",
        "600000000/s",
        "600000001/s",
        "10000000000/s",
    ];
    // Steps as fractions of the fill time of the bucket, down to a microsecond.
    let step = prop_oneof![Just(0_u64), Just(1), 2_u64..=1_000, 1_000_u64..=1_000_000, Just(u64::MAX)];
    let calls = (proptest::sample::select(texts.to_vec()), proptest::collection::vec(step, 1..400));
    let exact = |(text, steps): (&str, Vec<u64>)| {
        let quota: Quota = text.parse().unwrap();
        let (amount, period) = parse_rate(text);
        let mut key = CoreModel::new(quota);
        let start = Micros::from_secs(1_700_000_000);
        let mut now = start;
        let mut taken = take_all(&mut key, now);
        prop_assert_eq!(taken, quota.limit());

        // Short enough that the bucket never overflows, which would lose tokens by design.
        let longest = (u128::from(quota.limit() - 1) * period / amount).max(1) as u64;
        for step in steps {
            now = now.saturating_add(Micros::new(step.min(longest)));
            taken += take_all(&mut key, now);
        }
        let brought = u128::from(now.saturating_sub(start).get()) * amount / period;
        prop_assert_eq!(u128::from(taken - quota.limit()), brought);
        Ok(())
    };
    if let Err(broken) = runner().run(&calls, exact) {
        panic!("{broken}");
    }
}

/// The amount and the period in microseconds, parsed independently of the core.
fn parse_rate(text: &str) -> (u128, u128) {
    let amount = text.split(['/', ' ']).next().unwrap().parse().unwrap();
    let period = match text {
        _ if text.contains("/d") => u128::from(DAY.get()),
        _ if text.contains("/min") => 60_000_000,
        _ if text.contains("per 10s") => 10_000_000,
        _ => 1_000_000,
    };
    (amount, period)
}

/// Polling every few microseconds for seconds grants the exact number of bytes.
#[test]
fn byte_rates_are_exact_over_long_runs() {
    for (text, bytes_per_second) in [
        ("600MB/s", 600_000_000),
        ("1.5GB/s", 1_500_000_000),
        ("100Gbit/s", 12_500_000_000),
        ("333.333333MB/s", 333_333_333),
        ("1.000003GB/s", 1_000_003_000),
    ] {
        let quota: Quota = text.parse().unwrap();
        for step in [1_u64, 7, 113, 9_973] {
            let mut key = CoreModel::new(quota);
            let mut now = Micros::ZERO;
            let mut taken = take_all(&mut key, now);
            assert_eq!(taken, bytes_per_second);
            for _ in 0..20_000 {
                now = now.saturating_add(Micros::new(step));
                taken += take_all(&mut key, now);
            }
            let brought = u128::from(bytes_per_second) * u128::from(now.get()) / 1_000_000;
            assert_eq!(u128::from(taken - bytes_per_second), brought, "{text} every {step}us");
        }
    }
}

/// Single calls at every retry time get the same total as one call for all.
#[test]
fn greedy_callers_get_exactly_the_rate() {
    for (text, length) in [("3/s burst 1", 1_000_u64), ("7 per 10s burst 1", 1_000), ("999/s burst 1", 20)] {
        let quota: Quota = text.parse().unwrap();
        let (amount, period) = parse_rate(text);
        let mut key = CoreModel::new(quota);
        let end = Micros::from_secs(length);
        let (mut now, mut granted) = (Micros::ZERO, 0_u128);
        while now <= end {
            match key.decide(now, Demand::new(1)).decision.outcome() {
                Outcome::Deny(Retry::After(wait)) => now = now.saturating_add(wait),
                _ => granted += 1,
            }
        }
        // A wait is rounded up to a microsecond, which loses time if the burst is one.
        let brought = u128::from(end.get()) * amount / period + 1;
        let lost = (granted + 1) / (period / amount) + 1;
        assert!(granted <= brought && granted + lost >= brought, "{text}: {granted} of {brought}");
    }
}

#[test]
fn burst_admits_exactly_its_size() {
    for burst in (1..=300).chain([1_000, 65_536]) {
        let quota = Quota::per_second(10).token_bucket(burst).unwrap();
        let mut key = CoreModel::new(quota);
        let mut now = Micros::from_secs(1_700_000_000);
        for _ in 0..2 {
            let admitted =
                (0..=burst).filter(|_| key.decide(now, Demand::new(1)).decision.is_allowed()).count();
            assert_eq!(admitted as u64, burst);
            // Full again after exactly this time, and not a microsecond earlier.
            let full = key.peek(now, Demand::peek(0)).decision.reset_after();
            assert_eq!(full, Micros::from_millis(100 * burst));
            assert_eq!(
                key.peek(now.saturating_add(full).saturating_sub(Micros::new(1)), Demand::peek(0))
                    .decision
                    .remaining(),
                burst - 1
            );
            now = now.saturating_add(full);
        }
    }
}

/// At any rate the retry time is above zero, and a retry after it succeeds.
#[test]
fn retry_is_never_zero_and_succeeds() {
    for text in [
        "10000000000/s burst 1",
        "10000000000/s",
        "1000001/s burst 1",
        "3/us burst 1",
        "1/d",
        "7/s leaky-bucket queue 3",
        "1/us fixed-window",
        "3/us sliding-window",
        "1000003/s sliding-strict 1000",
        "3/us sliding-log",
        "3/s smooth",
        "3/s warm-up 1s",
    ] {
        let quota: Quota = text.parse().unwrap();
        let mut key = CoreModel::new(quota);
        let mut now = Micros::from_secs(1_700_000_000);
        for _ in 0..1_000 {
            match key.decide(now, Demand::new(1)).decision.outcome() {
                Outcome::Allow if quota.limit() > 100 => {
                    key.decide(now, Demand::new(quota.limit() - 1));
                }
                Outcome::Deny(Retry::After(wait)) => {
                    assert!(wait > Micros::ZERO, "{text}");
                    now = now.saturating_add(wait);
                    assert!(key.decide(now, Demand::new(1)).decision.is_allowed(), "{text}");
                }
                Outcome::Allow => {}
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
