//! A pass for each call, and a report of how it ended.
//!
//! ```text
//!   try_pass ──▶ Pass ──▶ succeed, fail, ignore, report
//!      │           └────▶ dropped: ignored, or failed if that is a panic
//!      └──▶ Rejection
//! ```
//!
//! Whatever lets calls through by how others ended is a [`CallGuard`]: breakers, throttles that follow errors, adaptive limits.
//! Middleware is written once for all of them.

use crate::{CallOutcome, Rejection, fallback::CallError};
use std::{fmt, ops::Deref, sync::Arc, thread};

/// Lets calls through or not, by how others ended.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings, CallError, CallGuard};
///
/// let breaker = Breaker::new(BreakerSettings::builder().count_window(1).build()?);
/// let answer = breaker.call(|| "4x".parse::<u8>());
/// assert!(matches!(answer, Err(CallError::Failed(_))));
/// let answer = breaker.call(|| "42".parse::<u8>());
/// assert!(matches!(answer, Err(CallError::Rejected(_))));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub trait CallGuard: RecordOutcome {
    /// Lets a call through, or not. Whoever is let through calls [`settle`](RecordOutcome::record) exactly once; a [`CallPermit`]
    /// sees to that.
    fn admit(&self) -> Result<Self::Entry, Rejection>;

    /// A pass for one call.
    #[inline]
    fn try_acquire(&self) -> Result<CallPermit<&Self>, Rejection>
    where
        Self: Sized,
    {
        self.admit().map(|entry| CallPermit::new(self, entry))
    }

    /// A pass that borrows nothing, for futures that outlive their maker.
    #[inline]
    fn try_acquire_owned(self: &Arc<Self>) -> Result<CallPermit<Arc<Self>>, Rejection>
    where
        Self: Sized,
    {
        self.admit().map(|entry| CallPermit::new(self.clone(), entry))
    }

    /// Makes a call if it may be made; an `Err` is a failure.
    #[inline]
    fn call<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, CallError<E>>
    where
        Self: Sized,
    {
        self.call_classified(CallOutcome::from_result, call)
    }

    /// Makes a call if it may be made, and has `classify` say how it ended.
    #[inline]
    fn call_classified<T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> CallOutcome,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, CallError<E>>
    where
        Self: Sized,
    {
        let pass = self.try_acquire().map_err(CallError::Rejected)?;
        let result = call();
        pass.record(classify(&result));
        result.map_err(CallError::Failed)
    }

    /// Makes an asynchronous call if it may be made; an `Err` is a failure, a dropped future is ignored.
    fn call_async<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        Self: Sized,
    {
        self.call_async_classified(CallOutcome::from_result, call)
    }

    /// Makes an asynchronous call if it may be made, and has `classify` say how it ended. It enters when it is polled
    /// first; a dropped future is ignored.
    fn call_async_classified<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> CallOutcome,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, CallError<E>>>
    where
        Self: Sized,
    {
        async move {
            let pass = self.try_acquire().map_err(CallError::Rejected)?;
            let result = call().await;
            pass.record(classify(&result));
            result.map_err(CallError::Failed)
        }
    }
}

/// Hears how calls ended.
pub trait RecordOutcome {
    /// What must be known of a call when it ends.
    type Entry;

    /// A call that was let through has ended.
    fn record(&self, entry: Self::Entry, report: CallOutcome);
}

/// Leave to make one call, which reports how it ended.
///
/// A pass that is dropped without a word is [ignored](CallOutcome::Ignored): the call was given up, which says nothing of
/// what was called. While its thread panics it is a [failure](CallOutcome::Failure).
#[must_use = "a pass that is dropped at once was given for nothing"]
pub struct CallPermit<B: Deref<Target: RecordOutcome>> {
    guard: B,
    /// Until it is reported.
    entry: Option<<B::Target as RecordOutcome>::Entry>,
}

impl<B: Deref<Target: RecordOutcome>> CallPermit<B> {
    #[inline]
    pub(crate) fn new(guard: B, entry: <B::Target as RecordOutcome>::Entry) -> Self {
        Self { guard, entry: Some(entry) }
    }

    /// The call did what it should.
    #[inline]
    pub fn succeed(self) {
        self.record(CallOutcome::Success);
    }

    /// The call failed in a way that tells of trouble.
    #[inline]
    pub fn fail(self) {
        self.record(CallOutcome::Failure);
    }

    /// The call says nothing of what was called.
    #[inline]
    pub fn ignore(self) {
        self.record(CallOutcome::Ignored);
    }

    /// The call ended in this way.
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
            let report = if thread::panicking() { CallOutcome::Failure } else { CallOutcome::Ignored };
            self.guard.record(entry, report);
        }
    }
}

impl<B: Deref<Target: RecordOutcome>> fmt::Debug for CallPermit<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}
