//! Another answer instead of none: which cause leads to which.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{convert::Infallible, time::Duration};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{DirectLimiter, WaitError, Waiter};
use tidegate_overload::{
    Cause, Rejection, Switchboard,
    fallback::{Degrade as _, attempt, attempt_async},
};

type Answer = Result<&'static str, Cause<String>>;

fn denied() -> Decision {
    Decision::deny(10, Micros::from_millis(1_500))
}

fn causes() -> [(&'static str, Cause<String>); 7] {
    [
        ("limited", Cause::Limited(denied())),
        ("away", Cause::StoreAway(Micros::from_secs(1))),
        ("open", Cause::Rejected(Rejection::Open(Micros::from_secs(3)))),
        ("full", Cause::Refused(WaitError::QueueFull)),
        ("off", Cause::SwitchedOff),
        ("misconfigured", Cause::Misconfigured("two quotas".into())),
        ("failed", Cause::Failed("boom".to_string())),
    ]
}

fn name<E>(cause: &Cause<E>) -> &'static str {
    match cause {
        Cause::Limited(_) => "limited",
        Cause::StoreAway(_) => "away",
        Cause::Rejected(_) => "open",
        Cause::Refused(WaitError::QueueFull) => "full",
        Cause::SwitchedOff => "off",
        Cause::Misconfigured(_) => "misconfigured",
        Cause::Failed(_) => "failed",
        _ => "other",
    }
}

#[test]
fn the_fallback_is_told_the_cause() {
    for (expected, cause) in causes() {
        assert_eq!(Answer::Err(cause).fallback(|cause| name(&cause)), expected);
    }
    assert_eq!(Answer::Ok("fine").fallback(|_| "not asked"), "fine");
}

#[test]
fn what_was_refused_and_what_failed_can_be_told_apart() {
    for (expected, cause) in causes() {
        let refused = Answer::Err(cause.clone()).if_refused(|cause: Cause<Infallible>| name(&cause));
        let failed = Answer::Err(cause.clone()).if_failed(|_error| "mended");
        match cause {
            Cause::Failed(error) => {
                assert_eq!((refused, failed), (Err(error), Ok("mended")));
            }
            _ => {
                assert_eq!(refused, Ok(expected));
                assert_eq!(failed.as_ref().map_err(name), Err(expected));
            }
        }
    }
    assert_eq!(Answer::Ok("fine").if_refused(|_| "not asked"), Ok("fine"));
    assert_eq!(Answer::Ok("fine").if_failed(|_| "not asked"), Ok("fine"));
}

#[test]
fn a_call_is_made_only_if_it_was_granted() {
    let throttle = DirectLimiter::new("1/min").unwrap();
    let calls = std::cell::Cell::new(0);
    let call = || {
        calls.set(calls.get() + 1);
        Err::<(), _>("down")
    };
    assert_eq!(attempt(throttle.check(), call), Err(Cause::Failed("down")));
    assert!(
        matches!(attempt(throttle.check(), call), Err(Cause::Limited(decision)) if !decision.is_granted())
    );
    assert_eq!(calls.get(), 1);
}

#[test]
fn every_gate_leads_to_a_cause() {
    let board = Switchboard::new([tidegate_overload::Switch::by_hand("ads")], Duration::ZERO).unwrap();
    board.turn_off("ads").unwrap();
    let throttle = DirectLimiter::builder().max_waiters(0).build("1 at once").unwrap();
    let ads = board.feature("ads").unwrap();
    let ask = || -> Result<(), Cause<String>> {
        Cause::unless_off(&ads)?;
        let _permit = throttle.blocking().permit_queued(Waiter::new(1))?;
        Ok(())
    };
    assert_eq!(ask(), Err(Cause::SwitchedOff));
    board.turn_on("ads").unwrap();
    assert_eq!(ask(), Err(Cause::Refused(WaitError::QueueFull)));
}

/// What is counted here instead of in a store is a limit; only who is to pass nobody without it is closed.
#[test]
fn a_denial_is_a_limit_or_a_store_that_is_away() {
    type Denial = Cause<Infallible>;
    let closed = Decision::fail_closed(10, Micros::from_secs(1));
    assert!(closed.is_fail_closed() && closed.is_degraded() && !closed.is_granted());
    assert_eq!(Denial::unless_granted(closed), Err(Cause::StoreAway(Micros::from_secs(1))));
    let counted = denied().into_degraded();
    assert!(!counted.is_fail_closed());
    assert_eq!(Denial::of_denial(counted), Cause::Limited(counted));
    assert_eq!(Denial::from(WaitError::StoreUnavailable(Micros::new(5))), Cause::StoreAway(Micros::new(5)));
}

#[test]
fn a_cause_knows_when_to_come_back_and_what_to_say() {
    let told: Vec<_> = causes().map(|(_, cause)| (cause.retry_after(), cause.to_string())).into();
    let millis = |millis| Some(Duration::from_millis(millis));
    let expected = [
        (millis(1_500), "over the limit of 10, try again in 1.5s"),
        (millis(1_000), "the store that counts is away, try again in 1s"),
        (millis(3_000), "the breaker is open; a probe may go in 3s"),
        (None, "every place in the line is taken"),
        (None, "the feature is turned off"),
        (None, "two quotas"),
        (None, "boom"),
    ];
    assert_eq!(told, expected.map(|(retry, text)| (retry, text.to_string())));
}

/// The futures can be sent to another thread, as servers do.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn answers_that_take_their_time() {
    let slow = |text: &'static str| async move {
        tokio::task::yield_now().await;
        text
    };
    let task = tokio::spawn(async move {
        let refused = attempt_async(denied(), || async { Ok::<_, String>("not called") }).await;
        let failed =
            attempt_async(Decision::unlimited(), || async { Err::<&str, _>("boom".to_string()) }).await;
        let fine = attempt_async(Decision::unlimited(), || async { Ok::<_, String>("fine") }).await;
        (
            refused.clone().fallback_async(|cause| slow(name(&cause))).await,
            refused.if_refused_async(|cause| slow(name(&cause))).await,
            failed.clone().if_refused_async(|_| slow("not asked")).await,
            failed.fallback_async(|cause| slow(name(&cause))).await,
            fine.clone().fallback_async(|_| slow("not asked")).await,
            fine.if_refused_async(|_| slow("not asked")).await,
        )
    });
    let told = task.await.unwrap();
    assert_eq!(told, ("limited", Ok("limited"), Err("boom".to_string()), "failed", "fine", Ok("fine")));
}
