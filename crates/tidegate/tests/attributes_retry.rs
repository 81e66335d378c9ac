//! `#[retry]` and `#[time_limit]`, alone and together with other attributes.

#![cfg(feature = "macros")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};
use tidegate::{
    CallError, Limited, breaker, concurrency, limit, overload::Rejection, overload::RetryAction, retry,
    time_limit,
};

#[derive(Debug, PartialEq)]
enum RetryTestError {
    Failed,
    /// The text of a rejection.
    Rejected(String),
}

impl From<Limited> for RetryTestError {
    fn from(limited: Limited) -> Self {
        Self::Rejected(limited.to_string())
    }
}

/// Counts calls, of which the first ones fail.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn fail_first(&self, failures: u32) -> Result<u32, RetryTestError> {
        match self.0.fetch_add(1, Ordering::SeqCst) {
            call if call < failures => Err(RetryTestError::Failed),
            call => Ok(call + 1),
        }
    }

    fn count(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }
}

#[retry(max = 2, backoff = "1ms")]
async fn fail_first(calls: Calls, failures: u32) -> Result<u32, RetryTestError> {
    calls.fail_first(failures)
}

#[tokio::test]
async fn failed_call_is_repeated_with_its_arguments() {
    for (failures, expected, count) in [(0, Ok(1), 1), (2, Ok(3), 3), (3, Err(RetryTestError::Failed), 3)] {
        let calls = Calls::default();
        assert_eq!(fail_first(calls.clone(), failures).await, expected);
        assert_eq!(calls.count(), count);
    }
}

/// Arguments in all forms that can be repeated.
#[retry(backoff = "1ms")]
async fn patterns(
    calls: &Calls,
    (mut text, numbers): (String, Vec<u32>),
    mut last: u32,
    _: &u32,
) -> Result<String, RetryTestError> {
    let call = calls.fail_first(1)?;
    last += call;
    text.push_str(&format!(" {numbers:?} {last}"));
    Ok(text)
}

#[tokio::test]
async fn arguments_are_unchanged_in_each_attempt() {
    let text = patterns(&Calls::default(), ("a".to_owned(), vec![1]), 10, &0).await;
    assert_eq!(text, Ok("a [1] 12".to_owned()));
}

struct Client {
    calls: Calls,
}

#[async_trait::async_trait]
trait Fetch {
    async fn fetch(&self, failures: u32) -> Result<u32, RetryTestError>;
}

#[async_trait::async_trait]
impl Fetch for Client {
    #[retry(max = 1, backoff = "1ms")]
    async fn fetch(&self, failures: u32) -> Result<u32, RetryTestError> {
        self.calls.fail_first(failures)
    }
}

#[retry(max = 1, backoff = "1ms")]
impl Client {
    async fn method(&self, failures: u32) -> Result<u32, RetryTestError> {
        self.calls.fail_first(failures)
    }

    #[retry(skip)]
    async fn once(&self) -> Result<u32, RetryTestError> {
        self.calls.fail_first(9)
    }
}

#[tokio::test]
async fn methods_are_repeated() {
    let client = || Client { calls: Calls::default() };
    assert_eq!((client().fetch(1).await, client().method(1).await), (Ok(2), Ok(2)));
    let client = client();
    assert_eq!((client.once().await, client.calls.count()), (Err(RetryTestError::Failed), 1));
    assert_send(client.method(0));
}

fn assert_send<F: Future + Send>(_: F) {}

#[retry(max = 5, backoff = "1ms", classify = |status| match status {
    Ok(503) => RetryAction::Retry,
    _ => RetryAction::Finish,
})]
async fn status(calls: &Calls, statuses: &[u16]) -> Result<u16, Limited> {
    let call = calls.fail_first(0).unwrap();
    Ok(statuses[call as usize - 1])
}

#[tokio::test]
async fn result_is_classified_by_function() {
    assert_eq!(status(&Calls::default(), &[503, 503, 200]).await.unwrap(), 200);
    assert_eq!(status(&Calls::default(), &[500]).await.unwrap(), 500);
}

#[retry(max = 3, backoff = "1ms", budget = "0%", min_per_second = 0)]
async fn without_budget(calls: &Calls) -> Result<u32, RetryTestError> {
    calls.fail_first(u32::MAX)
}

#[tokio::test]
async fn budget_is_shared_by_all_calls() {
    let calls = Calls::default();
    for _ in 0..20 {
        assert_eq!(without_budget(&calls).await, Err(RetryTestError::Failed));
    }
    assert_eq!(calls.count(), 30, "ten retries");
}

#[retry(max = 1, backoff = "1ms", time_limit = "20ms", message = "too slow")]
async fn stuck() -> Result<u32, RetryTestError> {
    pending().await
}

#[retry(max = 2, backoff = "1ms")]
#[time_limit("20ms", map_err = |limited| RetryTestError::Rejected(format!("{} {limited}", limited.rule())))]
async fn slow_first(calls: &Calls, slow: u32) -> Result<u32, RetryTestError> {
    match calls.fail_first(slow) {
        Ok(call) => Ok(call),
        Err(_) => pending().await,
    }
}

#[tokio::test]
async fn time_limits_cancel_calls() {
    assert_eq!(stuck().await, Err(RetryTestError::Rejected("too slow".to_owned())));
    let calls = Calls::default();
    assert_eq!((slow_first(&calls, 2).await, calls.count()), (Ok(3), 3));
    let text = "slow_first#time_limit slow_first#time_limit: time limit of 20ms exceeded";
    assert_eq!(slow_first(&Calls::default(), 3).await, Err(RetryTestError::Rejected(text.to_owned())));
}

/// The source order of attributes makes no difference.
#[limit("50/s burst 1", rule = "retried limit")]
#[retry(max = 1, backoff = "1ms", time_limit = "30s")]
async fn limited(calls: &Calls) -> Result<u32, RetryTestError> {
    calls.fail_first(0)
}

#[tokio::test]
async fn call_rejected_by_limit_is_retried_after_its_time() {
    let calls = Calls::default();
    for expected in 1..=3 {
        assert_eq!(limited(&calls).await, Ok(expected));
    }
}

#[retry(max = 5, backoff = "1ms", time_limit = "30s")]
#[breaker(window_size = 2, open_duration = "1h")]
#[concurrency(1)]
#[time_limit("10ms")]
async fn fragile(calls: &Calls) -> Result<u32, Limited> {
    let _ = calls.fail_first(0);
    pending().await
}

#[tokio::test]
async fn breaker_counts_attempts_over_their_time_limit() {
    let calls = Calls::default();
    let limited = fragile(&calls).await.unwrap_err();
    assert!(matches!(limited.cause(), CallError::GuardRejected(Rejection::Open(_))), "{limited}");
    assert_eq!(calls.count(), 2, "an hour is longer than the time limit");
}

#[retry(max = 5, backoff = "1ms", attempt_time_limit = "10ms")]
#[breaker(window_size = 2, open_duration = "1h")]
async fn hanging(calls: &Calls) -> Result<u32, Limited> {
    let _ = calls.fail_first(0);
    pending().await
}

#[tokio::test]
async fn breaker_counts_attempts_over_time_limit_of_retry() {
    let calls = Calls::default();
    let limited = hanging(&calls).await.unwrap_err();
    assert!(matches!(limited.cause(), CallError::GuardRejected(Rejection::Open(_))), "{limited}");
    assert_eq!(calls.count(), 2);
}

#[retry(max = 1, hedge_after = "1ms")]
async fn slow_once(calls: &Calls) -> Result<u32, RetryTestError> {
    match calls.fail_first(1) {
        Ok(call) => Ok(call),
        Err(_) => pending().await,
    }
}

#[tokio::test]
async fn slow_call_is_hedged() {
    assert_eq!(slow_once(&Calls::default()).await, Ok(2));
}
