//! A retrier, its counts, and the action after an attempt.

use super::{RetryBudget, RetryBuilder, latencies::RecentLatencies};
use crate::CallError;
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;

/// Retries calls, bounds their time, and hedges slow ones. Clones share the budget and the counts.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// use std::time::Duration;
/// use tidegate_overload::Retrier;
///
/// let retrier = Retrier::builder()
///     .max(2)
///     .backoff(Duration::from_millis(1))
///     .budget("10%".parse()?)
///     .time_limit(Duration::from_secs(2))
///     .build()?;
/// let answer = retrier.call(|attempt| async move { if attempt < 3 { Err("busy") } else { Ok(42) } }).await;
/// assert_eq!(answer, Ok(42));
/// assert_eq!(retrier.counts().retries, 2);
/// # Ok::<(), tidegate_core::SettingError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Only retry calls that may be made twice.
#[derive(Clone)]
pub struct Retrier {
    pub(super) inner: Arc<RetrierInner>,
}

pub(super) struct RetrierInner {
    pub(super) settings: RetryBuilder,
    pub(super) budget: Arc<RetryBudget>,
    /// A fixed hedge delay.
    pub(super) hedge_delay: Option<Micros>,
    /// The latencies whose percentile is the hedge delay.
    pub(super) latencies: Option<RecentLatencies>,
    pub(super) counters: RetryCounters,
}

#[derive(Default)]
pub(super) struct RetryCounters {
    pub(super) retries: AtomicU64,
    pub(super) hedges: AtomicU64,
    pub(super) hedge_wins: AtomicU64,
    pub(super) budget_exhausted: AtomicU64,
    pub(super) time_limit_exceeded: AtomicU64,
}

/// What happened to the calls of a [`Retrier`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryCounts {
    /// Attempts after a failed one.
    pub retries: u64,
    /// Second attempts while the first was still running.
    pub hedges: u64,
    /// Hedges whose result was used.
    pub hedge_wins: u64,
    /// Retries and hedges that the budget did not admit.
    pub budget_exhausted: u64,
    /// Attempts and calls that were cancelled by a time limit.
    pub time_limit_exceeded: u64,
}

/// What to do with the result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAction {
    /// Return it.
    Finish,
    /// Retry after a backoff.
    Retry,
    /// Retry after this time and a backoff; the result is returned if that exceeds the time limit.
    RetryAfter(Micros),
}

impl RetryAction {
    /// Retries every `Err`.
    pub fn from_result<T, E>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Finish,
            Err(_) => Self::Retry,
        }
    }

    /// Retries failed calls, and rejected ones after their retry time. Rejections without one are not retried.
    pub fn from_call_result<T, E>(result: &Result<T, CallError<E>>) -> Self {
        match result {
            Ok(_) => Self::Finish,
            Err(CallError::Failed(_) | CallError::TimeLimitExceeded(_)) => Self::Retry,
            Err(rejection) => rejection.retry_after().map_or(Self::Finish, Self::retry_after),
        }
    }

    /// Retries after this time.
    pub fn retry_after(wait: Duration) -> Self {
        Self::RetryAfter(wait.into())
    }
}

impl Retrier {
    /// Creates a builder with the defaults: two retries with a backoff from 50 ms to 5 s, at most 20 % of the calls and ten
    /// per second, without time limits and hedges.
    pub fn builder() -> RetryBuilder {
        RetryBuilder::new()
    }

    pub(super) fn from_parts(
        settings: RetryBuilder,
        budget: Arc<RetryBudget>,
        hedge_delay: Option<Micros>,
        latencies: Option<RecentLatencies>,
    ) -> Self {
        let counters = RetryCounters::default();
        Self { inner: Arc::new(RetrierInner { settings, budget, hedge_delay, latencies, counters }) }
    }

    /// The counts since it was built.
    pub fn counts(&self) -> RetryCounts {
        let RetryCounters { retries, hedges, hedge_wins, budget_exhausted, time_limit_exceeded } =
            &self.inner.counters;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        RetryCounts {
            retries: read(retries),
            hedges: read(hedges),
            hedge_wins: read(hedge_wins),
            budget_exhausted: read(budget_exhausted),
            time_limit_exceeded: read(time_limit_exceeded),
        }
    }

    /// The budget, for other retriers.
    pub fn budget(&self) -> &Arc<RetryBudget> {
        &self.inner.budget
    }
}

impl fmt::Debug for Retrier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RetrierInner { settings, budget, .. } = &*self.inner;
        f.debug_struct("Retrier")
            .field("max", &settings.max)
            .field("time_limit", &settings.time_limit)
            .field("budget", budget)
            .finish_non_exhaustive()
    }
}
