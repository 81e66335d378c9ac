//! A permit for each call, which records the outcome.
//!
//! ```text
//!   try_acquire ──▶ CallPermit ──▶ succeed, fail, ignore, record
//!      │                └────────▶ dropped: ignored; failed during a panic or by a time limit
//!      └──▶ Rejection
//! ```
//!
//! Breakers, error throttles and adaptive limits implement [`CallGuard`], so middleware is written once for all of them.

use crate::{CallOutcome, Rejection, fallback::CallError};
#[cfg(feature = "tokio")]
use std::pin::Pin;
use std::{cell::Cell, fmt, ops::Deref, sync::Arc, thread};

/// Admits or rejects calls according to the outcomes of earlier ones.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings, CallError, CallGuard};
///
/// let breaker = Breaker::new(BreakerSettings::builder().count_window(1).build()?);
/// let result = breaker.call(|| "4x".parse::<u8>());
/// assert!(matches!(result, Err(CallError::Failed(_))));
/// let result = breaker.call(|| "42".parse::<u8>());
/// assert!(matches!(result, Err(CallError::GuardRejected(_))));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub trait CallGuard: RecordOutcome {
    /// Admits or rejects a call. For each admitted call, [`record`](RecordOutcome::record) must be called
    /// exactly once; a [`CallPermit`] ensures that.
    fn admit(&self) -> Result<Self::Entry, Rejection>;

    /// Returns a permit for one call.
    #[inline]
    fn try_acquire(&self) -> Result<CallPermit<&Self>, Rejection>
    where
        Self: Sized,
    {
        self.admit().map(|entry| CallPermit::new(self, entry))
    }

    /// Returns a permit that borrows nothing, for futures that outlive the current scope.
    #[inline]
    fn try_acquire_owned(self: &Arc<Self>) -> Result<CallPermit<Arc<Self>>, Rejection>
    where
        Self: Sized,
    {
        self.admit().map(|entry| CallPermit::new(self.clone(), entry))
    }

    /// Makes the call if it is admitted; an `Err` counts as a failure.
    #[inline]
    fn call<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>>
    where
        Self: Sized,
    {
        self.call_classified(CallOutcome::from_result, call)
    }

    /// Makes the call if it is admitted; `classify` determines the outcome.
    #[inline]
    fn call_classified<T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> CallOutcome,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, CallError<E>>
    where
        Self: Sized,
    {
        let permit = self.try_acquire().map_err(CallError::GuardRejected)?;
        let result = call();
        permit.record(classify(&result));
        result.map_err(CallError::Failed)
    }

    /// Makes an asynchronous call if it is admitted; an `Err` counts as a failure, and a dropped future as a dropped
    /// [`CallPermit`].
    fn call_async<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        Self: Sized,
    {
        self.call_async_classified(CallOutcome::from_result, call)
    }

    /// Makes an asynchronous call if it is admitted; `classify` determines the outcome. Admission happens on
    /// the first poll; a dropped future counts as a dropped [`CallPermit`].
    fn call_async_classified<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> CallOutcome,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        Self: Sized,
    {
        async move {
            let permit = self.try_acquire().map_err(CallError::GuardRejected)?;
            let result = call().await;
            permit.record(classify(&result));
            result.map_err(CallError::Failed)
        }
    }
}

/// Records the outcomes of calls.
pub trait RecordOutcome {
    /// The data about a call that is needed when it ends.
    type Entry;

    /// Records the outcome of an admitted call.
    fn record(&self, entry: Self::Entry, report: CallOutcome);
}

/// A permit for one call, which records the outcome.
///
/// A permit that is dropped without an outcome is [ignored](CallOutcome::Ignored): a cancelled call is no evidence about
/// the backend. It counts as a [failure](CallOutcome::Failure) while its thread panics, and if a time limit of a
/// [`Retrier`](crate::Retrier) or of `limit_time` drops it.
#[must_use = "a permit that is dropped at once records an ignored call"]
pub struct CallPermit<B: Deref<Target: RecordOutcome>> {
    guard: B,
    /// `None` once the outcome is recorded.
    entry: Option<<B::Target as RecordOutcome>::Entry>,
}

impl<B: Deref<Target: RecordOutcome>> CallPermit<B> {
    #[inline]
    pub(crate) fn new(guard: B, entry: <B::Target as RecordOutcome>::Entry) -> Self {
        Self { guard, entry: Some(entry) }
    }

    /// Records a success.
    #[inline]
    pub fn succeed(self) {
        self.record(CallOutcome::Success);
    }

    /// Records a failure that indicates trouble.
    #[inline]
    pub fn fail(self) {
        self.record(CallOutcome::Failure);
    }

    /// Records a call whose outcome is no evidence about the backend.
    #[inline]
    pub fn ignore(self) {
        self.record(CallOutcome::Ignored);
    }

    /// Records this outcome.
    #[inline]
    pub fn record(mut self, report: CallOutcome) {
        if let Some(entry) = self.entry.take() {
            self.guard.record(entry, report);
        }
    }
}

impl<B: Deref<Target: RecordOutcome>> Drop for CallPermit<B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let is_failure = thread::panicking() || IS_OVER_TIME_LIMIT.try_with(Cell::get).unwrap_or(false);
            let report = if is_failure { CallOutcome::Failure } else { CallOutcome::Ignored };
            self.guard.record(entry, report);
        }
    }
}

thread_local! {
    /// Whether this thread is dropping a call that exceeded its time limit.
    static IS_OVER_TIME_LIMIT: Cell<bool> = const { Cell::new(false) };
}

/// Drops a call that exceeded its time limit; its permits record failures. A dropped future cannot be given a reason, so the
/// thread has it, as during a panic.
#[cfg(feature = "tokio")]
pub(crate) fn drop_over_time_limit<F>(mut call: Pin<&mut Option<F>>) {
    /// Restores the value, also if a destructor panics.
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            let _ended = IS_OVER_TIME_LIMIT.try_with(|flag| flag.set(self.0));
        }
    }

    let _restore = Restore(IS_OVER_TIME_LIMIT.try_with(|flag| flag.replace(true)).unwrap_or(false));
    call.set(None);
}

impl<B: Deref<Target: RecordOutcome>> fmt::Debug for CallPermit<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallPermit")
    }
}
