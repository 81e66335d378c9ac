//! Which cause leads to which fallback.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use std::{convert::Infallible, time::Duration};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{DirectLimiter, WaitError, Waiter};
use tidegate_overload::{
    CallError, Features, Rejection,
    fallback::{ResultExt as _, attempt, attempt_async},
};

type CallResult = Result<&'static str, CallError<String>>;

fn denied_decision() -> Decision {
    Decision::deny(10, Micros::from_millis(1_500))
}

fn call_errors() -> [(&'static str, CallError<String>); 8] {
    [
        ("limited", CallError::Limited(denied_decision())),
        ("unavailable", CallError::StoreUnavailable(Micros::from_secs(1))),
        ("open", CallError::GuardRejected(Rejection::Open(Micros::from_secs(3)))),
        ("full", CallError::WaitFailed(WaitError::QueueFull)),
        ("off", CallError::FeatureDisabled),
        ("misconfigured", CallError::Misconfigured("two quotas".into())),
        ("too slow", CallError::TimeLimitExceeded(Micros::from_secs(2))),
        ("failed", CallError::Failed("boom".to_string())),
    ]
}

fn variant_name<E>(cause: &CallError<E>) -> &'static str {
    match cause {
        CallError::Limited(_) => "limited",
        CallError::StoreUnavailable(_) => "unavailable",
        CallError::GuardRejected(_) => "open",
        CallError::WaitFailed(WaitError::QueueFull) => "full",
        CallError::FeatureDisabled => "off",
        CallError::Misconfigured(_) => "misconfigured",
        CallError::TimeLimitExceeded(_) => "too slow",
        CallError::Failed(_) => "failed",
        _ => "other",
    }
}

#[test]
fn recover_receives_call_error() {
    for (expected, cause) in call_errors() {
        assert_eq!(CallResult::Err(cause).recover(|cause| variant_name(&cause)), expected);
    }
    assert_eq!(CallResult::Ok("fine").recover(|_| "not used"), "fine");
}

/// A call over its time limit may have had an effect, so it is not a rejection.
#[test]
fn recover_distinguishes_rejection_from_failure() {
    for (expected, cause) in call_errors() {
        let rejected = CallResult::Err(cause.clone())
            .recover_rejected(|cause: CallError<Infallible>| variant_name(&cause));
        let failed = CallResult::Err(cause.clone()).recover_failed(|_error| "recovered");
        match cause {
            CallError::Failed(_) => assert_eq!((rejected, failed), (Err(cause), Ok("recovered"))),
            CallError::TimeLimitExceeded(limit) => {
                let exceeded = CallError::TimeLimitExceeded(limit);
                assert_eq!((rejected, failed), (Err(cause), Err(exceeded)));
            }
            _ => {
                assert_eq!(rejected, Ok(expected));
                assert_eq!(failed.as_ref().map_err(variant_name), Err(expected));
            }
        }
    }
    assert_eq!(CallResult::Ok("fine").recover_rejected(|_| "not used"), Ok("fine"));
    assert_eq!(CallResult::Ok("fine").recover_failed(|_| "not used"), Ok("fine"));
}

#[test]
fn denied_call_is_not_made() {
    let throttle = DirectLimiter::new("1/min").unwrap();
    let calls = std::cell::Cell::new(0);
    let call = || {
        calls.set(calls.get() + 1);
        Err::<(), _>("down")
    };
    assert_eq!(attempt(throttle.check(), call), Err(CallError::Failed("down")));
    assert!(
        matches!(attempt(throttle.check(), call), Err(CallError::Limited(decision)) if !decision.is_granted())
    );
    assert_eq!(calls.get(), 1);
}

#[test]
fn every_guard_converts_to_call_error() {
    let features = Features::new([tidegate_overload::FeatureConfig::manual("ads")], Duration::ZERO).unwrap();
    features.turn_off("ads").unwrap();
    let throttle = DirectLimiter::builder().max_waiters(0).build("1 at once").unwrap();
    let ads = features.feature("ads").unwrap();
    let call = || -> Result<(), CallError<String>> {
        CallError::check_enabled(&ads)?;
        let _permit = throttle.blocking().permit_queued(Waiter::new(1))?;
        Ok(())
    };
    assert_eq!(call(), Err(CallError::FeatureDisabled));
    features.turn_on("ads").unwrap();
    assert_eq!(call(), Err(CallError::WaitFailed(WaitError::QueueFull)));
}

/// A denial of the local fallback store is a limit; only a fail-closed decision reports an unavailable store.
#[test]
fn denial_is_limit_or_unavailable_store() {
    type Denial = CallError<Infallible>;
    let closed = Decision::fail_closed(10, Micros::from_secs(1));
    assert!(closed.is_fail_closed() && closed.is_degraded() && !closed.is_granted());
    assert_eq!(Denial::check_granted(closed), Err(CallError::StoreUnavailable(Micros::from_secs(1))));
    let counted = denied_decision().into_degraded();
    assert!(!counted.is_fail_closed());
    assert_eq!(Denial::from_denial(counted), CallError::Limited(counted));
    assert_eq!(
        Denial::from(WaitError::StoreUnavailable(Micros::new(5))),
        CallError::StoreUnavailable(Micros::new(5))
    );
}

#[test]
fn call_error_has_retry_after_and_message() {
    let actual: Vec<_> = call_errors().map(|(_, cause)| (cause.retry_after(), cause.to_string())).into();
    let millis = |millis| Some(Duration::from_millis(millis));
    let expected = [
        (millis(1_500), "limit of 10 exceeded; retry in 1.5s"),
        (millis(1_000), "store unavailable; retry in 1s"),
        (millis(3_000), "circuit breaker open; next probe in 3s"),
        (None, "wait queue full"),
        (None, "feature disabled"),
        (None, "two quotas"),
        (None, "time limit of 2s exceeded"),
        (None, "boom"),
    ];
    assert_eq!(actual, expected.map(|(retry, text)| (retry, text.to_string())));
}

/// The futures are `Send`, as servers require.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn recover_async_awaits_fallback() {
    let slow = |text: &'static str| async move {
        tokio::task::yield_now().await;
        text
    };
    let task = tokio::spawn(async move {
        let rejected = attempt_async(denied_decision(), || async { Ok::<_, String>("not called") }).await;
        let failed =
            attempt_async(Decision::unlimited(), || async { Err::<&str, _>("boom".to_string()) }).await;
        let fine = attempt_async(Decision::unlimited(), || async { Ok::<_, String>("fine") }).await;
        (
            rejected.clone().recover_async(|cause| slow(variant_name(&cause))).await,
            rejected.recover_rejected_async(|cause| slow(variant_name(&cause))).await,
            failed.clone().recover_rejected_async(|_| slow("not used")).await,
            failed.recover_async(|cause| slow(variant_name(&cause))).await,
            fine.clone().recover_async(|_| slow("not used")).await,
            fine.recover_rejected_async(|_| slow("not used")).await,
        )
    });
    let (actual, boom) = (task.await.unwrap(), CallError::Failed("boom".to_string()));
    assert_eq!(actual, ("limited", Ok("limited"), Err(boom), "failed", "fine", Ok("fine")));
}
