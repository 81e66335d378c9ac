//! A pass for each call, and a report of how it ended.
//!
//! ```text
//!   try_pass ──▶ Pass ──▶ succeed, fail, ignore, report
//!      │           └────▶ dropped: ignored, or failed if that is a panic
//!      └──▶ Rejection
//! ```
//!
//! Whatever lets calls through by how others ended is a [`Guard`]: breakers, throttles that follow errors, adaptive limits.
//! Middleware is written once for all of them.

use crate::{Rejection, Report, fallback::Cause};
use std::{fmt, ops::Deref, sync::Arc, thread};

/// Lets calls through or not, by how others ended.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings, Cause, Guard};
///
/// let breaker = Breaker::new(BreakerSettings::builder().over_calls(1).build()?);
/// let answer = breaker.call(|| "4x".parse::<u8>());
/// assert!(matches!(answer, Err(Cause::Failed(_))));
/// let answer = breaker.call(|| "42".parse::<u8>());
/// assert!(matches!(answer, Err(Cause::Rejected(_))));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub trait Guard: Settle {
    /// Lets a call through, or not. Whoever is let through calls [`settle`](Settle::settle) exactly once; a [`Pass`]
    /// sees to that.
    fn enter(&self) -> Result<Self::Entry, Rejection>;

    /// A pass for one call.
    #[inline]
    fn try_pass(&self) -> Result<Pass<&Self>, Rejection>
    where
        Self: Sized,
    {
        self.enter().map(|entry| Pass::new(self, entry))
    }

    /// A pass that borrows nothing, for futures that outlive their maker.
    #[inline]
    fn try_pass_owned(self: &Arc<Self>) -> Result<Pass<Arc<Self>>, Rejection>
    where
        Self: Sized,
    {
        self.enter().map(|entry| Pass::new(self.clone(), entry))
    }

    /// Makes a call if it may be made; an `Err` is a failure.
    #[inline]
    fn call<T, E>(&self, call: impl FnOnce() -> Result<T, E>) -> Result<T, Cause<E>>
    where
        Self: Sized,
    {
        self.call_classified(Report::of, call)
    }

    /// Makes a call if it may be made, and has `classify` say how it ended.
    #[inline]
    fn call_classified<T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> Report,
        call: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, Cause<E>>
    where
        Self: Sized,
    {
        let pass = self.try_pass().map_err(Cause::Rejected)?;
        let result = call();
        pass.report(classify(&result));
        result.map_err(Cause::Failed)
    }

    /// Makes an asynchronous call if it may be made; an `Err` is a failure, a dropped future is ignored.
    fn call_async<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, Cause<E>>>
    where
        Self: Sized,
    {
        self.call_async_classified(Report::of, call)
    }

    /// Makes an asynchronous call if it may be made, and has `classify` say how it ended. It enters when it is polled
    /// first; a dropped future is ignored.
    fn call_async_classified<F: Future<Output = Result<T, E>>, T, E>(
        &self,
        classify: impl FnOnce(&Result<T, E>) -> Report,
        call: impl FnOnce() -> F,
    ) -> impl Future<Output = Result<T, Cause<E>>>
    where
        Self: Sized,
    {
        async move {
            let pass = self.try_pass().map_err(Cause::Rejected)?;
            let result = call().await;
            pass.report(classify(&result));
            result.map_err(Cause::Failed)
        }
    }
}

/// Hears how calls ended.
pub trait Settle {
    /// What must be known of a call when it ends.
    type Entry;

    /// A call that was let through has ended.
    fn settle(&self, entry: Self::Entry, report: Report);
}

/// Leave to make one call, which reports how it ended.
///
/// A pass that is dropped without a word is [ignored](Report::Insensitive): the call was given up, which says nothing of
/// what was called. While its thread panics it is a [failure](Report::Failure).
#[must_use = "a pass that is dropped at once was given for nothing"]
pub struct Pass<B: Deref<Target: Settle>> {
    guard: B,
    /// Until it is reported.
    entry: Option<<B::Target as Settle>::Entry>,
}

impl<B: Deref<Target: Settle>> Pass<B> {
    #[inline]
    pub(crate) fn new(guard: B, entry: <B::Target as Settle>::Entry) -> Self {
        Self { guard, entry: Some(entry) }
    }

    /// The call did what it should.
    #[inline]
    pub fn succeed(self) {
        self.report(Report::Success);
    }

    /// The call failed in a way that tells of trouble.
    #[inline]
    pub fn fail(self) {
        self.report(Report::Failure);
    }

    /// The call says nothing of what was called.
    #[inline]
    pub fn ignore(self) {
        self.report(Report::Ignored);
    }

    /// The call ended in this way.
    #[inline]
    pub fn report(mut self, report: Report) {
        if let Some(entry) = self.entry.take() {
            self.guard.settle(entry, report);
        }
    }
}

impl<B: Deref<Target: Settle>> Drop for Pass<B> {
    #[inline]
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            let report = if thread::panicking() { Report::Failure } else { Report::Ignored };
            self.guard.settle(entry, report);
        }
    }
}

impl<B: Deref<Target: Settle>> fmt::Debug for Pass<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pass")
    }
}
