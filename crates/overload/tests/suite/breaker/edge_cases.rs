//! Invalid settings are rejected; invalid times are harmless.

use tidegate_core::{Micros, Percent};
use tidegate_overload::{
    BreakerSettings, BreakerState, CallOutcome, Rejection,
    breaker::{BreakerMachine, Generation},
};

#[test]
fn rejects_invalid_settings() {
    let new = BreakerSettings::builder;
    let (second, half) = (Micros::from_secs(1), Percent::from_ratio(1, 2));
    for (wrong, problem) in [
        (new().count_window(0), "a window of calls of 0"),
        (new().count_window(u32::MAX), "a window of calls of"),
        (new().time_window(Micros::ZERO), "a window must not be zero"),
        (new().time_window(Micros::MAX), "a window must be finite"),
        (new().bucketed_window(second, 0), "a number of buckets of 0"),
        (new().bucketed_window(Micros::new(5), 6), "a window of 5us in 6 buckets"),
        (new().min_calls(0), "a minimum number of calls must not be zero"),
        (new().failure_rate(Percent::ZERO), "a failure rate of 0%"),
        (new().slow_calls(Percent::ZERO, second), "a slow call rate of 0%"),
        (new().slow_calls(half, Micros::ZERO), "a slow call threshold must not be zero"),
        (new().slow_calls(half, Micros::MAX), "a slow call threshold must be finite"),
        (new().half_open_calls(0), "a number of probes must not be zero"),
        (new().half_open_timeout(Micros::ZERO), "a probe deadline must not be zero"),
        (new().half_open_timeout(Micros::MAX), "a probe deadline must be finite"),
        (new().open_duration(Micros::ZERO), "an open time must not be zero"),
        (new().open_duration(Micros::MAX), "an open time must be finite"),
        (new().backoff(0.99, second), "a backoff factor of 0.99"),
        (new().backoff(f64::NAN, second), "a backoff factor of NaN"),
        (new().backoff(f64::INFINITY, second), "a backoff factor of inf"),
        (new().backoff(2.0, Micros::MAX), "a maximum open time must be finite"),
        (
            new().open_duration(Micros::from_secs(9)).backoff(2.0, second),
            "a maximum open time of 1s is below the initial 9s",
        ),
    ] {
        let error = wrong.build().unwrap_err();
        assert!(error.problem().starts_with(problem), "{error}");
    }
    // Percentages above 100 % cannot be constructed, so no such jitter or rate exists.
    assert!("101%".parse::<Percent>().is_err());
    assert!(new().jitter(Percent::FULL).backoff(1.0, Micros::from_secs(60)).build().is_ok());
}

fn open_breaker(at: Micros) -> BreakerMachine {
    let settings =
        BreakerSettings::builder().count_window(1).half_open_calls(1).open_duration(Micros::from_secs(5));
    let mut breaker = BreakerMachine::new(settings.build().unwrap());
    let generation = breaker.try_acquire(at, 0.5).unwrap();
    breaker.record(generation, CallOutcome::Failure, Micros::MAX, at, 0.5);
    assert_eq!(breaker.state(), BreakerState::Open);
    breaker
}

/// A clock that was far ahead does not keep the breaker open until that time.
#[test]
fn clock_step_back_restarts_open_time_once() {
    let five = Micros::from_secs(5);
    for (opened_at, back_to) in
        [(Micros::MAX, Micros::ZERO), (Micros::from_secs(9_000), Micros::from_secs(7))]
    {
        let mut breaker = open_breaker(opened_at);
        assert_eq!(breaker.try_acquire(back_to, 0.5), Err(Rejection::Open(five)));
        let almost = back_to.saturating_add(Micros::new(4_999_999));
        assert_eq!(breaker.try_acquire(almost, 0.5), Err(Rejection::Open(Micros::new(1))));
        assert!(breaker.try_acquire(back_to.saturating_add(five), 0.5).is_ok());
        // The same for the half-open state.
        assert_eq!(breaker.try_acquire(Micros::ZERO, 0.5), Err(Rejection::Probing(Micros::from_secs(60))));
        assert!(matches!(breaker.try_acquire(Micros::from_secs(60), 0.5), Err(Rejection::Open(_))));
        assert!(breaker.try_acquire(Micros::from_secs(65), 0.5).is_ok());
    }
}

#[test]
fn accepts_max_time_and_max_open_time() {
    let mut breaker = open_breaker(Micros::MAX);
    assert!(breaker.try_acquire(Micros::MAX, 0.5).is_err(), "the time does not advance");
    breaker.open_for(Micros::ZERO, Micros::MAX);
    assert_eq!(breaker.try_acquire(Micros::ZERO, 0.5), Err(Rejection::Open(Micros::MAX)));
    assert!(breaker.try_acquire(Micros::MAX, 0.5).is_ok());
    breaker.close();
    assert!(breaker.try_acquire(Micros::ZERO, 0.5).is_ok());
}

/// Open times grow up to the maximum and stay there; jitter changes them by its share at most.
#[test]
fn open_time_stays_within_bounds() {
    let tenth = Percent::from_ratio(1, 10);
    for (random, percent) in
        [(0.0, 90), (0.25, 95), (0.5, 100), (1.0, 110), (-5.0, 90), (7.0, 110), (f64::NAN, 100)]
    {
        let settings = BreakerSettings::builder()
            .count_window(1)
            .half_open_calls(1)
            .open_duration(Micros::from_secs(1))
            .backoff(1_000.0, Micros::from_secs(1_000_000))
            .jitter(tenth)
            .build()
            .unwrap();
        let (mut breaker, mut now) = (BreakerMachine::new(settings), Micros::ZERO);
        for base in [1, 1_000, 1_000_000, 1_000_000, 1_000_000] {
            let generation = breaker.try_acquire(now, random).unwrap();
            breaker.record(generation, CallOutcome::Failure, Micros::ZERO, now, random);
            let wait = breaker.try_acquire(now, random).unwrap_err().retry_after().unwrap();
            assert_eq!(wait, Micros::from_millis(base * 10 * percent), "a random of {random}");
            now = now.saturating_add(wait);
        }
        assert_eq!(breaker.snapshot(now).attempts, 5);
    }
}

#[test]
fn full_jitter_keeps_open_time_positive() {
    let settings = BreakerSettings::builder().count_window(1).jitter(Percent::FULL).build().unwrap();
    let mut breaker = BreakerMachine::new(settings);
    let generation = breaker.try_acquire(Micros::ZERO, 0.0).unwrap();
    breaker.record(generation, CallOutcome::Failure, Micros::ZERO, Micros::ZERO, 0.0);
    assert_eq!(breaker.try_acquire(Micros::ZERO, 0.0), Err(Rejection::Open(Micros::new(1))));
}

/// Outcomes without an admission may be counted, but never free more slots than there are.
#[test]
fn unmatched_outcomes_are_ignored() {
    let mut breaker = open_breaker(Micros::ZERO);
    let now = Micros::from_secs(5);
    let generation = breaker.try_acquire(now, 0.5).unwrap();
    for _ in 0..3 {
        breaker.record(generation, CallOutcome::Ignored, Micros::ZERO, now, 0.5);
        breaker.record(Generation(u64::MAX), CallOutcome::Failure, Micros::MAX, now, 0.5);
    }
    assert!(breaker.try_acquire(now, 0.5).is_ok());
    assert!(breaker.try_acquire(now, 0.5).is_err());
}
