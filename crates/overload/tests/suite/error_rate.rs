//! Throttles that follow errors: by chance, and by a quota.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{sync::Arc, thread, time::Duration};
use tidegate_core::{Percent, Retry};
use tidegate_limiter::{BuildError, Clock, ManualClock};
use tidegate_overload::{
    Cause, ClientThrottle, ClientThrottleSettings, ErrorRateSettings, ErrorThrottle, Guard, Rejection, Report,
};

const SECOND: Duration = Duration::from_secs(1);

fn client() -> (Arc<ClientThrottle>, ManualClock) {
    let (clock, hand) = Clock::manual();
    let settings = ClientThrottleSettings::builder().build().unwrap();
    (Arc::new(ClientThrottle::with_clock(settings, clock)), hand)
}

/// More than ten requests in ten seconds, of which more than half fail: then one per second.
fn by_quota() -> (ErrorThrottle, ManualClock) {
    let (clock, hand) = Clock::manual();
    let settings = ErrorRateSettings::builder().requests_over(10).build().unwrap();
    (ErrorThrottle::with_clock(settings, "1/s burst 1", clock).unwrap(), hand)
}

#[test]
fn a_healthy_backend_is_never_shielded() {
    let (throttle, _hand) = client();
    for call in 0..1_000 {
        let pass = throttle.try_pass().unwrap();
        // Half of them fail, which a multiplier of two makes good.
        pass.report(if call % 2 == 0 { Report::Success } else { Report::Failure });
        assert!(throttle.chance() < 0.01);
    }
}

/// Chance has its say, but with these odds not once in the age of the universe another one.
#[test]
fn a_dead_backend_gets_a_tenth_and_is_found_when_it_recovers() {
    let (throttle, hand) = client();
    let ask = |times: usize, report: Report| {
        (0..times).filter_map(|_| throttle.try_pass().ok()).map(|pass| pass.report(report)).count()
    };
    let passed = ask(10_000, Report::Failure);
    assert!((500..2_000).contains(&passed), "{passed} of 10000");
    assert_eq!((throttle.chance(), throttle.counts()), (0.9, [10_000, 0]), "shed ones count");
    // Within two windows: shed requests keep counting for one of them.
    let recovered = (0..240).position(|_| {
        hand.advance(SECOND);
        ask(1_000, Report::Success);
        throttle.chance() == 0.0
    });
    assert!(recovered.is_some(), "{:?}", throttle.counts());
}

#[test]
fn dropped_passes_and_panics_of_a_client() {
    let (throttle, _hand) = client();
    drop(throttle.try_pass().unwrap());
    drop(throttle.try_pass_owned().unwrap());
    assert_eq!(throttle.counts(), [0, 0], "as if they had not been made");
    assert_eq!(throttle.call(|| Err::<(), _>(1)), Err(Cause::Failed(1)));
    let ours = throttle.clone();
    let panicked = thread::spawn(move || ours.call(|| -> Result<(), ()> { panic!("on purpose") })).join();
    assert!(panicked.is_err());
    assert_eq!(throttle.counts(), [2, 0]);
}

#[test]
fn a_quota_holds_while_both_thresholds_are_passed() {
    let (throttle, hand) = by_quota();
    for call in 0..11 {
        assert!(!throttle.is_limiting(), "after {call} calls");
        throttle.try_pass().unwrap().fail();
    }
    assert!(throttle.is_limiting());
    throttle.try_pass().unwrap().fail();
    let rejection = throttle.try_pass().unwrap_err();
    assert_eq!(rejection, Rejection::OverQuota(Retry::After(SECOND.into())));
    assert_eq!(rejection.retry_after(), Some(SECOND.into()));
    hand.advance(SECOND);
    throttle.try_pass().unwrap().fail();
    assert!(throttle.try_pass().is_err());
    assert_eq!(throttle.counts(), [15, 13, 13]);
    hand.advance(SECOND * 10);
    assert!(!throttle.is_limiting());
    (0..10).for_each(|_| throttle.try_pass().unwrap().fail());
}

#[test]
fn few_errors_limit_nothing_however_many_calls() {
    let (throttle, _hand) = by_quota();
    for call in 0..1_000 {
        let pass = throttle.try_pass().unwrap();
        pass.report(if call % 2 == 0 { Report::Success } else { Report::Failure });
    }
    assert!(!throttle.is_limiting());
    assert_eq!(throttle.counts(), [1_000, 1_000, 500]);
}

#[test]
fn dropped_passes_are_requests_without_an_answer() {
    let (throttle, _hand) = by_quota();
    (0..100).for_each(|_| drop(throttle.try_pass().unwrap()));
    assert_eq!(throttle.counts(), [100, 0, 0]);
    throttle.try_pass().unwrap().fail();
    assert!(throttle.is_limiting());
}

#[test]
fn quotas_that_make_no_sense_are_refused() {
    let settings = || ErrorRateSettings::builder().build().unwrap();
    assert!(matches!(ErrorThrottle::new(settings(), "10/s/s"), Err(BuildError::Quota(_))));
    let Err(BuildError::Setting(error)) = ErrorThrottle::new(settings(), "3 at once") else {
        panic!("nobody would give slots back")
    };
    assert!(error.to_string().contains("3 at once"), "{error}");
    assert!(ErrorRateSettings::builder().errors_over(Percent::FULL).build().is_err());
}

#[test]
fn threads_lose_no_report() {
    let (client, (by_quota, _hand)) = (client().0, by_quota());
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..1_000 {
                    client.try_pass().unwrap().succeed();
                    by_quota.try_pass().unwrap().succeed();
                }
            });
        }
    });
    assert_eq!((client.counts(), by_quota.counts()), ([8_000, 8_000], [8_000, 8_000, 0]));
}
