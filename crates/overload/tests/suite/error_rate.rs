//! Throttles that follow errors: at random, and by a quota.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{sync::Arc, thread, time::Duration};
use tidegate_core::{Percent, Retry};
use tidegate_limiter::{BuildError, Clock, ManualClock};
use tidegate_overload::{
    CallError, CallGuard, CallOutcome, ClientThrottle, ClientThrottleSettings, ErrorRateSettings,
    ErrorThrottle, Rejection,
};

const SECOND: Duration = Duration::from_secs(1);

fn client_throttle() -> (Arc<ClientThrottle>, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let settings = ClientThrottleSettings::builder().build().unwrap();
    (Arc::new(ClientThrottle::with_clock(settings, clock)), manual_clock)
}

/// More than ten requests in ten seconds, more than half of which fail: then one per second.
fn error_throttle() -> (ErrorThrottle, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let settings = ErrorRateSettings::builder().request_threshold(10).build().unwrap();
    (ErrorThrottle::with_clock(settings, "1/s burst 1", clock).unwrap(), manual_clock)
}

#[test]
fn healthy_backend_sheds_nothing() {
    let (throttle, _manual_clock) = client_throttle();
    for call in 0..1_000 {
        let permit = throttle.try_acquire().unwrap();
        // Half of them fail, which a multiplier of two tolerates.
        permit.record(if call % 2 == 0 { CallOutcome::Success } else { CallOutcome::Failure });
        assert!(throttle.shed_probability() < 0.01);
    }
}

/// Random, but the probability of another result is negligible.
#[test]
fn failing_backend_gets_a_tenth_and_recovers() {
    let (throttle, manual_clock) = client_throttle();
    let call = |times: usize, report: CallOutcome| {
        (0..times).filter_map(|_| throttle.try_acquire().ok()).map(|permit| permit.record(report)).count()
    };
    let passed = call(10_000, CallOutcome::Failure);
    assert!((500..2_000).contains(&passed), "{passed} of 10000");
    assert_eq!((throttle.shed_probability(), throttle.counts()), (0.9, [10_000, 0]), "shed ones count");
    // Within two windows: shed requests keep counting for one of them.
    let recovered = (0..240).position(|_| {
        manual_clock.advance(SECOND);
        call(1_000, CallOutcome::Success);
        throttle.shed_probability() == 0.0
    });
    assert!(recovered.is_some(), "{:?}", throttle.counts());
}

#[test]
fn client_throttle_records_drops_and_panics() {
    let (throttle, _manual_clock) = client_throttle();
    drop(throttle.try_acquire().unwrap());
    drop(throttle.try_acquire_owned().unwrap());
    assert_eq!(throttle.counts(), [0, 0], "dropped permits are not counted");
    assert_eq!(throttle.call(|| Err::<(), _>(1)), Err(CallError::Failed(1)));
    let ours = throttle.clone();
    let panicked = thread::spawn(move || ours.call(|| -> Result<(), ()> { panic!("on purpose") })).join();
    assert!(panicked.is_err());
    assert_eq!(throttle.counts(), [2, 0]);
}

#[test]
fn quota_applies_while_both_thresholds_are_exceeded() {
    let (throttle, manual_clock) = error_throttle();
    for call in 0..11 {
        assert!(!throttle.is_limiting(), "after {call} calls");
        throttle.try_acquire().unwrap().fail();
    }
    assert!(throttle.is_limiting());
    throttle.try_acquire().unwrap().fail();
    let rejection = throttle.try_acquire().unwrap_err();
    assert_eq!(rejection, Rejection::QuotaExceeded(Retry::After(SECOND.into())));
    assert_eq!(rejection.retry_after(), Some(SECOND.into()));
    manual_clock.advance(SECOND);
    throttle.try_acquire().unwrap().fail();
    assert!(throttle.try_acquire().is_err());
    assert_eq!(throttle.counts(), [15, 13, 13]);
    manual_clock.advance(SECOND * 10);
    assert!(!throttle.is_limiting());
    (0..10).for_each(|_| throttle.try_acquire().unwrap().fail());
}

#[test]
fn few_errors_do_not_enable_quota() {
    let (throttle, _manual_clock) = error_throttle();
    for call in 0..1_000 {
        let permit = throttle.try_acquire().unwrap();
        permit.record(if call % 2 == 0 { CallOutcome::Success } else { CallOutcome::Failure });
    }
    assert!(!throttle.is_limiting());
    assert_eq!(throttle.counts(), [1_000, 1_000, 500]);
}

#[test]
fn dropped_permits_count_as_unanswered_requests() {
    let (throttle, _manual_clock) = error_throttle();
    (0..100).for_each(|_| drop(throttle.try_acquire().unwrap()));
    assert_eq!(throttle.counts(), [100, 0, 0]);
    throttle.try_acquire().unwrap().fail();
    assert!(throttle.is_limiting());
}

#[test]
fn rejects_invalid_quotas() {
    let settings = || ErrorRateSettings::builder().build().unwrap();
    assert!(matches!(ErrorThrottle::new(settings(), "10/s/s"), Err(BuildError::Quota(_))));
    let Err(BuildError::Setting(error)) = ErrorThrottle::new(settings(), "3 at once") else {
        panic!("a concurrency quota is accepted")
    };
    assert!(error.to_string().contains("3 at once"), "{error}");
    assert!(ErrorRateSettings::builder().error_threshold(Percent::FULL).build().is_err());
}

#[test]
fn concurrent_outcomes_are_all_counted() {
    let (client, (by_quota, _manual_clock)) = (client_throttle().0, error_throttle());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    client.try_acquire().unwrap().succeed();
                    by_quota.try_acquire().unwrap().succeed();
                }
            });
        }
    });
    assert_eq!((client.counts(), by_quota.counts()), ([8_000, 8_000], [8_000, 8_000, 0]));
}
