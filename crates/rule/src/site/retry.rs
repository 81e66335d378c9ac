//! Sites with retries and with time limits.

use crate::{Limited, RuleConfig, Rules};
use std::{
    future::Future,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::Clock;
use tidegate_overload::{CallOutcome, Retrier, RetryAction, retry::limit_time};

/// A site with retries.
pub struct RetrySite {
    declare: fn() -> Result<(RuleConfig, Retrier), SettingError>,
    retrier: OnceLock<Option<NamedRetrier>>,
}

struct NamedRetrier {
    retrier: Retrier,
    name: Arc<str>,
    message: Option<Arc<str>>,
}

impl RetrySite {
    /// Creates a site whose retrier is built on the first call.
    pub const fn new(declare: fn() -> Result<(RuleConfig, Retrier), SettingError>) -> Self {
        Self { declare, retrier: OnceLock::new() }
    }

    /// Makes a call with retries. The error is an exceeded time limit.
    pub async fn call<R, F: Future<Output = (R, AttemptRejection)>>(
        &'static self,
        mut classify: impl FnMut(&R) -> RetryAction,
        mut call: impl FnMut(u32) -> F,
    ) -> Result<R, Limited> {
        // The attribute has validated the settings, so that there is a retrier.
        let built = self.retrier.get_or_init(|| {
            let (config, retrier) = (self.declare)().ok()?;
            Some(NamedRetrier { retrier, name: config.name.as_ref().into(), message: config.message })
        });
        let Some(NamedRetrier { retrier, name, message }) = built else { return Ok(call(1).await.0) };
        let classify = |(answer, rejection): &(R, AttemptRejection)| rejection.action(|| classify(answer));
        match retrier.attempt(classify, call).await {
            Ok((answer, _)) => Ok(answer),
            Err(error) => Err(Limited::new(name.clone(), error).with_message(message.clone())),
        }
    }
}

/// The rejection of one attempt by a limit, a concurrency limit or a breaker of the same function.
#[derive(Debug, Default)]
pub struct AttemptRejection {
    /// The microseconds until a retry makes sense, plus one; [`NEVER`] if unknown, and zero without a rejection.
    retry_after: AtomicU64,
}

const NEVER: u64 = u64::MAX;

impl AttemptRejection {
    /// Records a rejection.
    pub fn record(&self, limited: &Limited) {
        let wait = limited.retry_after().map_or(NEVER, |wait| Micros::from(wait).get().saturating_add(1));
        self.retry_after.store(wait, Ordering::Relaxed);
    }

    /// What to do after the attempt: a rejection is retried after its time, and a result by its class.
    fn action(&self, classify: impl FnOnce() -> RetryAction) -> RetryAction {
        match self.retry_after.load(Ordering::Relaxed) {
            0 => classify(),
            NEVER => RetryAction::Finish,
            wait => RetryAction::RetryAfter(Micros::new(wait - 1)),
        }
    }
}

/// Retries a failure.
pub fn retry_failure(outcome: CallOutcome) -> RetryAction {
    match outcome {
        CallOutcome::Failure => RetryAction::Retry,
        CallOutcome::Success | CallOutcome::Ignored => RetryAction::Finish,
    }
}

/// Classifies a result with a function, for `classify = …`.
pub fn classify_retry<R>(result: &R, classify: impl FnOnce(&R) -> RetryAction) -> RetryAction {
    classify(result)
}

/// The clock of retries and time limits: that of limiters in memory. A site reads it at its first call, because reading it
/// locks the rules; a clock that is set later does not change the site.
pub fn clock() -> Clock {
    Rules::global().clock().unwrap_or_default()
}

/// A site with a time limit.
pub struct TimeLimitSite {
    limit: Micros,
    declare: fn() -> RuleConfig,
    clock: OnceLock<Clock>,
}

impl TimeLimitSite {
    /// Creates a site. The declaration is for the error.
    pub const fn new(limit: Micros, declare: fn() -> RuleConfig) -> Self {
        Self { limit, declare, clock: OnceLock::new() }
    }

    /// Makes a call within the time limit.
    pub async fn call<R>(&'static self, call: impl Future<Output = R>) -> Result<R, Limited> {
        limit_time(self.limit, self.clock.get_or_init(clock), call).await.map_err(|error| {
            let config = (self.declare)();
            Limited::new(config.name.as_ref(), error).with_message(config.message)
        })
    }
}
