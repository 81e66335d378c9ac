//! Fallbacks for calls that were rejected or failed.
//!
//! ```text
//!   guard ──rejected──▶ CallError::Limited, StoreUnavailable, Rejected, … ─┐
//!     └──▶ call ──Err(e)──▶ CallError::Failed(e), TimeLimitExceeded ───────┴──▶ fallback
//! ```
//!
//! A rejected call was never made, a failed one was, and one that exceeded its time limit may have had an effect, so they
//! often need different fallbacks. Where one value serves all, use `unwrap_or` or `unwrap_or_else` of the standard library.

use crate::{Rejection, features::Feature};
use std::{convert::Infallible, error, fmt, future::Future, sync::Arc, time::Duration};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::WaitError;

/// The reason why there is no result: the call was rejected, exceeded its time limit, or failed with an `E`.
///
/// ```
/// use tidegate_overload::{CallError, fallback::ResultExt as _};
/// use tidegate_limiter::Limiter;
///
/// fn price(limiter: &Limiter) -> Result<u64, CallError<std::num::ParseIntError>> {
///     CallError::check_granted(limiter.check("alice"))?;
///     "1999".parse().map_err(CallError::Failed)
/// }
///
/// let limiter = Limiter::new("1/min")?;
/// let cached = 1_899;
/// assert_eq!(price(&limiter).recover_rejected(|_cause| cached), Ok(1_999));
/// assert_eq!(price(&limiter).recover_rejected(|_cause| cached), Ok(1_899));
/// assert_eq!(price(&limiter).unwrap_or(cached), 1_899);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError<E = Infallible> {
    /// A limit was reached.
    Limited(Decision),
    /// The store is unavailable and the rule fails closed (`FailureMode::Closed`). A retry makes sense after
    /// this time; the store may still be unavailable then.
    StoreUnavailable(Micros),
    /// A guard rejected the call: for example, a breaker is open or the concurrency limit is reached.
    GuardRejected(Rejection),
    /// A wait queue was full ([`WaitError::QueueFull`]), or the wait would have been too long.
    WaitFailed(WaitError),
    /// The feature is turned off.
    FeatureDisabled,
    /// The program declares the limit twice, with different settings. The text names both declarations; it is
    /// for the log, not for clients.
    Misconfigured(Arc<str>),
    /// The call took longer than this time limit, and was cancelled. It may have had an effect.
    TimeLimitExceeded(Micros),
    /// The call was made and failed.
    Failed(E),
}

impl<E> CallError<E> {
    /// Returns a granted decision, delayed or not, and an error for a denied one.
    pub fn check_granted(decision: Decision) -> Result<Decision, Self> {
        match decision.is_granted() {
            true => Ok(decision),
            false => Err(Self::from_denial(decision)),
        }
    }

    /// Converts a denial: the limit was exceeded, or the store is unavailable.
    pub fn from_denial(decision: Decision) -> Self {
        match decision.is_fail_closed() {
            true => Self::StoreUnavailable(decision.wait()),
            false => Self::Limited(decision),
        }
    }

    /// Returns an error if the feature is disabled.
    pub fn check_enabled(feature: &Feature) -> Result<(), Self> {
        match feature.is_on() {
            true => Ok(()),
            false => Err(Self::FeatureDisabled),
        }
    }

    /// The time after which a retry makes sense, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(decision) => decision.retry_after().map(Micros::to_duration),
            Self::StoreUnavailable(wait) | Self::WaitFailed(WaitError::StoreUnavailable(wait)) => {
                Some(wait.to_duration())
            }
            Self::GuardRejected(rejection) => rejection.retry_after().map(Micros::to_duration),
            Self::WaitFailed(_)
            | Self::FeatureDisabled
            | Self::Misconfigured(_)
            | Self::TimeLimitExceeded(_)
            | Self::Failed(_) => None,
        }
    }

    /// Separates a rejection (`Ok`) from the error of a call that was made (`Err`): its failure, or its exceeded time
    /// limit.
    pub fn split(self) -> Result<CallError, Self> {
        match self {
            Self::TimeLimitExceeded(_) => Err(self),
            error => error.without_failure().map_err(Self::Failed),
        }
    }

    /// Separates the failure of the call (`Err`) from all other errors (`Ok`).
    fn without_failure(self) -> Result<CallError, E> {
        match self {
            Self::Limited(decision) => Ok(CallError::Limited(decision)),
            Self::StoreUnavailable(wait) => Ok(CallError::StoreUnavailable(wait)),
            Self::GuardRejected(rejection) => Ok(CallError::GuardRejected(rejection)),
            Self::WaitFailed(error) => Ok(CallError::WaitFailed(error)),
            Self::FeatureDisabled => Ok(CallError::FeatureDisabled),
            Self::Misconfigured(error) => Ok(CallError::Misconfigured(error)),
            Self::TimeLimitExceeded(limit) => Ok(CallError::TimeLimitExceeded(limit)),
            Self::Failed(error) => Err(error),
        }
    }
}

impl<E> From<WaitError> for CallError<E> {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::StoreUnavailable(wait) => Self::StoreUnavailable(wait),
            error => Self::WaitFailed(error),
        }
    }
}

impl<E> From<Rejection> for CallError<E> {
    fn from(rejection: Rejection) -> Self {
        Self::GuardRejected(rejection)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => match decision.retry_after() {
                Some(wait) => {
                    write!(f, "limit of {} exceeded; retry in {}", decision.limit(), wait.rounded())
                }
                None => write!(f, "limit of {} exceeded", decision.limit()),
            },
            Self::StoreUnavailable(wait) => WaitError::StoreUnavailable(*wait).fmt(f),
            Self::GuardRejected(rejection) => rejection.fmt(f),
            Self::WaitFailed(error) => error.fmt(f),
            Self::FeatureDisabled => f.write_str("feature disabled"),
            Self::Misconfigured(error) => f.write_str(error),
            Self::TimeLimitExceeded(limit) => write!(f, "time limit of {limit} exceeded"),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: error::Error + 'static> error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // `Display` shows the inner error itself, so the chain continues with its source.
            Self::Failed(error) => error.source(),
            _ => None,
        }
    }
}

/// Makes the call if the decision granted it.
///
/// ```
/// use tidegate_overload::{CallError, fallback::attempt};
/// use tidegate_limiter::DirectLimiter;
///
/// let throttle = DirectLimiter::new("1/min")?;
/// let mut call = || attempt(throttle.check(), || "7".parse::<u8>());
/// assert_eq!(call(), Ok(7));
/// assert!(matches!(call(), Err(CallError::Limited(_))));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
pub fn attempt<T, E>(decision: Decision, call: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>> {
    CallError::check_granted(decision)?;
    call().map_err(CallError::Failed)
}

/// Makes an asynchronous call if the decision granted it; otherwise `call` is not invoked.
pub async fn attempt_async<T, E, F>(decision: Decision, call: impl FnOnce() -> F) -> Result<T, CallError<E>>
where
    F: Future<Output = Result<T, E>>,
{
    CallError::check_granted(decision)?;
    call().await.map_err(CallError::Failed)
}

/// Fallbacks for results of guarded calls.
pub trait ResultExt<T, E> {
    /// Returns the result, or that of `fallback`, which receives the reason.
    fn recover(self, fallback: impl FnOnce(CallError<E>) -> T) -> T;

    /// Like [`recover`](Self::recover), with an asynchronous fallback.
    fn recover_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError<E>) -> F,
    ) -> impl Future<Output = T>;

    /// Returns the result, or that of `fallback` if the call was rejected. Errors of a call that was made are returned: its
    /// failure, and its exceeded time limit, because it may have had an effect.
    fn recover_rejected(self, fallback: impl FnOnce(CallError) -> T) -> Result<T, CallError<E>>;

    /// Like [`recover_rejected`](Self::recover_rejected), with an asynchronous fallback.
    fn recover_rejected_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError) -> F,
    ) -> impl Future<Output = Result<T, CallError<E>>>;

    /// Returns the result, or that of `fallback` if the call was made and failed. Rejections and exceeded time limits are
    /// returned.
    fn recover_failed(self, fallback: impl FnOnce(E) -> T) -> Result<T, CallError>;
}

impl<T, E> ResultExt<T, E> for Result<T, CallError<E>> {
    fn recover(self, fallback: impl FnOnce(CallError<E>) -> T) -> T {
        self.unwrap_or_else(fallback)
    }

    async fn recover_async<F: Future<Output = T>>(self, fallback: impl FnOnce(CallError<E>) -> F) -> T {
        match self {
            Ok(value) => value,
            Err(cause) => fallback(cause).await,
        }
    }

    fn recover_rejected(self, fallback: impl FnOnce(CallError) -> T) -> Self {
        self.or_else(|cause| cause.split().map(fallback))
    }

    async fn recover_rejected_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError) -> F,
    ) -> Self {
        match self {
            Ok(value) => Ok(value),
            Err(cause) => Ok(fallback(cause.split()?).await),
        }
    }

    fn recover_failed(self, fallback: impl FnOnce(E) -> T) -> Result<T, CallError> {
        self.or_else(|cause| match cause.without_failure() {
            Ok(cause) => Err(cause),
            Err(error) => Ok(fallback(error)),
        })
    }
}
