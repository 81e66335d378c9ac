//! What to answer instead, knowing why.
//!
//! ```text
//!   gate ──refused──▶ Cause::Limited, StoreAway, Rejected, Refused, SwitchedOff, Misconfigured ─┐
//!     └──▶ call ──Err(e)──▶ Cause::Failed(e) ───────────────────────────────────────────────────┴──▶ fallback
//! ```
//!
//! A call that was refused was never made, and one that failed was: they often deserve different answers. Where one
//! answer does for both, `unwrap_or` and `unwrap_or_else` of the standard library are all that is needed.

use crate::{Rejection, features::Feature};
use std::{convert::Infallible, error, fmt, future::Future, sync::Arc, time::Duration};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::WaitError;

/// Why there is no answer: the call was refused, or it failed with an `E`.
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
/// assert_eq!(price(&limiter).recover_refused(|_why| cached), Ok(1_999));
/// assert_eq!(price(&limiter).recover_refused(|_why| cached), Ok(1_899));
/// assert_eq!(price(&limiter).unwrap_or(cached), 1_899);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CallError<E = Infallible> {
    /// A limit was reached.
    Limited(Decision),
    /// The store that counts is away, and the rule is to let nobody pass without it (`FailureMode::Closed`). It is worth asking
    /// again after this time; whether the store is back then, nobody knows.
    StoreUnavailable(Micros),
    /// A guard did not let the call through: a breaker is open, say, or too much is in flight.
    Rejected(Rejection),
    /// A line was full ([`WaitError::QueueFull`]), or its turn would have come too late.
    Refused(WaitError),
    /// The feature is turned off.
    FeatureDisabled,
    /// The program declares the limit in two ways that contradict each other. The text names both declarations; it is for
    /// the log, not for clients.
    Misconfigured(Arc<str>),
    /// The call was made, and failed.
    Failed(E),
}

impl<E> CallError<E> {
    /// Goes on with a decision that granted, after whatever delay; else names the limit.
    pub fn check_granted(decision: Decision) -> Result<Decision, Self> {
        match decision.is_granted() {
            true => Ok(decision),
            false => Err(Self::from_denial(decision)),
        }
    }

    /// What a denial is about: the limit, or a store that is away.
    pub fn from_denial(decision: Decision) -> Self {
        match decision.is_fail_closed() {
            true => Self::StoreUnavailable(decision.wait()),
            false => Self::Limited(decision),
        }
    }

    /// Goes on if the feature is on.
    pub fn check_enabled(feature: &Feature) -> Result<(), Self> {
        match feature.is_on() {
            true => Ok(()),
            false => Err(Self::FeatureDisabled),
        }
    }

    /// When it is worth trying again, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(decision) => decision.retry_after().map(Micros::to_duration),
            Self::StoreUnavailable(wait) | Self::Refused(WaitError::StoreUnavailable(wait)) => {
                Some(wait.to_duration())
            }
            Self::Rejected(rejection) => rejection.retry_after().map(Micros::to_duration),
            Self::Refused(_) | Self::FeatureDisabled | Self::Misconfigured(_) | Self::Failed(_) => None,
        }
    }

    /// The refusal, or the failure of the call.
    pub fn split(self) -> Result<CallError, E> {
        match self {
            Self::Limited(decision) => Ok(CallError::Limited(decision)),
            Self::StoreUnavailable(wait) => Ok(CallError::StoreUnavailable(wait)),
            Self::Rejected(rejection) => Ok(CallError::Rejected(rejection)),
            Self::Refused(refused) => Ok(CallError::Refused(refused)),
            Self::FeatureDisabled => Ok(CallError::FeatureDisabled),
            Self::Misconfigured(error) => Ok(CallError::Misconfigured(error)),
            Self::Failed(error) => Err(error),
        }
    }
}

impl<E> From<WaitError> for CallError<E> {
    fn from(refused: WaitError) -> Self {
        match refused {
            WaitError::StoreUnavailable(wait) => Self::StoreUnavailable(wait),
            refused => Self::Refused(refused),
        }
    }
}

impl<E> From<Rejection> for CallError<E> {
    fn from(rejection: Rejection) -> Self {
        Self::Rejected(rejection)
    }
}

impl<E: fmt::Display> fmt::Display for CallError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(decision) => match decision.retry_after() {
                Some(wait) => {
                    write!(f, "over the limit of {}, try again in {}", decision.limit(), wait.rounded())
                }
                None => write!(f, "over the limit of {}", decision.limit()),
            },
            Self::StoreUnavailable(wait) => WaitError::StoreUnavailable(*wait).fmt(f),
            Self::Rejected(rejection) => rejection.fmt(f),
            Self::Refused(refused) => refused.fmt(f),
            Self::FeatureDisabled => f.write_str("the feature is turned off"),
            Self::Misconfigured(error) => f.write_str(error),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: error::Error + 'static> error::Error for CallError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            // All print as what they stand for, and so go on with what is behind that.
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
/// let mut ask = || attempt(throttle.check(), || "7".parse::<u8>());
/// assert_eq!(ask(), Ok(7));
/// assert!(matches!(ask(), Err(CallError::Limited(_))));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
pub fn attempt<T, E>(decision: Decision, call: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>> {
    CallError::check_granted(decision)?;
    call().map_err(CallError::Failed)
}

/// The same for a call that is a future, which is not even made if the decision denied.
pub async fn attempt_async<T, E, F>(decision: Decision, call: impl FnOnce() -> F) -> Result<T, CallError<E>>
where
    F: Future<Output = Result<T, E>>,
{
    CallError::check_granted(decision)?;
    call().await.map_err(CallError::Failed)
}

/// Another answer instead of none.
pub trait ResultExt<T, E> {
    /// The answer, or that of `fallback`, which is told why.
    fn recover(self, fallback: impl FnOnce(CallError<E>) -> T) -> T;

    /// The same, where the other answer takes its time.
    fn recover_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError<E>) -> F,
    ) -> impl Future<Output = T>;

    /// The answer, or that of `fallback` if the call was refused. Failures of the call stay what they are.
    fn recover_refused(self, fallback: impl FnOnce(CallError) -> T) -> Result<T, E>;

    /// The same, where the other answer takes its time.
    fn recover_refused_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError) -> F,
    ) -> impl Future<Output = Result<T, E>>;

    /// The answer, or that of `fallback` if the call was made and failed. Refusals stay what they are.
    fn recover_failed(self, fallback: impl FnOnce(E) -> T) -> Result<T, CallError>;
}

impl<T, E> ResultExt<T, E> for Result<T, CallError<E>> {
    fn recover(self, fallback: impl FnOnce(CallError<E>) -> T) -> T {
        self.unwrap_or_else(fallback)
    }

    async fn recover_async<F: Future<Output = T>>(self, fallback: impl FnOnce(CallError<E>) -> F) -> T {
        match self {
            Ok(answer) => answer,
            Err(cause) => fallback(cause).await,
        }
    }

    fn recover_refused(self, fallback: impl FnOnce(CallError) -> T) -> Result<T, E> {
        self.or_else(|cause| cause.split().map(fallback))
    }

    async fn recover_refused_async<F: Future<Output = T>>(
        self,
        fallback: impl FnOnce(CallError) -> F,
    ) -> Result<T, E> {
        match self {
            Ok(answer) => Ok(answer),
            Err(cause) => Ok(fallback(cause.split()?).await),
        }
    }

    fn recover_failed(self, fallback: impl FnOnce(E) -> T) -> Result<T, CallError> {
        self.or_else(|cause| match cause.split() {
            Ok(refusal) => Err(refusal),
            Err(error) => Ok(fallback(error)),
        })
    }
}
