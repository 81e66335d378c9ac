//! Makes calls with retries, time limits and hedges.

use super::{Retrier, RetryAction, latencies::RecentLatencies, retrier::RetrierInner};
use crate::{CallError, call_guard::drop_over_time_limit};
use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::atomic::{AtomicU64, Ordering},
    task::Poll,
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;

impl Retrier {
    /// Makes a call; every `Err` is retried. `call` receives the number of the attempt, from 1.
    ///
    /// # Errors
    ///
    /// Returns the error of the last attempt, or [`CallError::TimeLimitExceeded`].
    pub async fn call<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        call: impl FnMut(u32) -> F,
    ) -> Result<T, CallError<E>> {
        self.call_classified(RetryAction::from_result, call).await
    }

    /// Makes a call; `classify` determines which results are retried.
    ///
    /// # Errors
    ///
    /// Returns the error of the last attempt, or [`CallError::TimeLimitExceeded`].
    pub async fn call_classified<T, E, F: Future<Output = Result<T, E>>>(
        &self,
        classify: impl FnMut(&Result<T, E>) -> RetryAction,
        call: impl FnMut(u32) -> F,
    ) -> Result<T, CallError<E>> {
        self.attempt(classify, call).await?.map_err(CallError::Failed)
    }

    /// Makes a call that a guard or a limiter may reject: a rejection is retried after its retry time.
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// use tidegate_limiter::DirectLimiter;
    /// use tidegate_overload::{Retrier, fallback::attempt_async};
    ///
    /// let limiter = DirectLimiter::new("20/s burst 1")?;
    /// let retrier = Retrier::builder().build()?;
    /// for _ in 0..2 {
    ///     let call = retrier.call_guarded(|_| attempt_async(limiter.check(), async || Ok::<_, ()>(7)));
    ///     assert_eq!(call.await, Ok(7));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Returns the error of the last attempt, or [`CallError::TimeLimitExceeded`].
    pub async fn call_guarded<T, E, F: Future<Output = Result<T, CallError<E>>>>(
        &self,
        call: impl FnMut(u32) -> F,
    ) -> Result<T, CallError<E>> {
        self.attempt(RetryAction::from_call_result, call).await?
    }

    /// Makes a call with a result of any type; `classify` determines which results are retried.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::TimeLimitExceeded`] if there is no result.
    pub async fn attempt<R, E, F: Future<Output = R>>(
        &self,
        classify: impl FnMut(&R) -> RetryAction,
        mut call: impl FnMut(u32) -> F,
    ) -> Result<R, CallError<E>> {
        self.attempt_with_inputs((), || Some(()), classify, |number, ()| call(number)).await
    }

    /// Makes a call whose attempts consume an input, such as a request. `next` returns the input of a retry or a hedge;
    /// without one there is no further attempt.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::TimeLimitExceeded`] if there is no result.
    pub async fn attempt_with_inputs<I, R, E, F: Future<Output = R>>(
        &self,
        first: I,
        next: impl FnMut() -> Option<I>,
        classify: impl FnMut(&R) -> RetryAction,
        call: impl FnMut(u32, I) -> F,
    ) -> Result<R, CallError<E>> {
        let inner = &*self.inner;
        inner.budget.add_call();
        let mut plan = CallPlan { next, classify, call, started: 0 };
        let Some(limit) = inner.settings.time_limit else {
            return inner.attempts(first, &mut plan, None).await.map_err(CallError::TimeLimitExceeded);
        };
        let deadline = inner.settings.clock.now().saturating_add(limit);
        let attempts = inner.attempts(first, &mut plan, Some(deadline));
        match cancel_at(&inner.settings.clock, deadline, attempts).await {
            Some(result) => result.map_err(CallError::TimeLimitExceeded),
            None => {
                count(&inner.counters.time_limit_exceeded);
                Err(CallError::TimeLimitExceeded(limit))
            }
        }
    }

    /// Makes a call that must not be made twice: only the time limits apply.
    ///
    /// # Errors
    ///
    /// Returns [`CallError::TimeLimitExceeded`] if there is no result.
    pub async fn attempt_once<R, E>(&self, call: impl Future<Output = R>) -> Result<R, CallError<E>> {
        let inner = &*self.inner;
        inner.budget.add_call();
        let limits = [inner.settings.time_limit, inner.settings.attempt_time_limit];
        let Some(limit) = limits.into_iter().flatten().min() else { return Ok(call.await) };
        let limited = limit_time(limit, &inner.settings.clock, call).await;
        if limited.is_err() {
            count(&inner.counters.time_limit_exceeded);
        }
        limited
    }
}

/// Makes a call; one that takes longer than the limit is cancelled, and a [`CallPermit`](crate::CallPermit) in it records a
/// failure.
///
/// # Errors
///
/// Returns [`CallError::TimeLimitExceeded`] if there is no result in time.
pub async fn limit_time<R, E>(
    limit: Micros,
    clock: &Clock,
    call: impl Future<Output = R>,
) -> Result<R, CallError<E>> {
    let deadline = clock.now().saturating_add(limit);
    cancel_at(clock, deadline, call).await.ok_or(CallError::TimeLimitExceeded(limit))
}

/// Runs a call until the deadline, and then drops it as one that exceeded its time limit.
async fn cancel_at<R>(clock: &Clock, deadline: Micros, call: impl Future<Output = R>) -> Option<R> {
    let mut call = pin!(Some(call));
    let result = match call.as_mut().as_pin_mut() {
        Some(call) => run_until(clock, deadline, call).await,
        None => None,
    };
    if result.is_none() {
        drop_over_time_limit(call);
    }
    result
}

/// Polls a call until the deadline. The timer is set when the call is pending for the first time.
async fn run_until<R>(
    clock: &Clock,
    deadline: Micros,
    mut call: Pin<&mut impl Future<Output = R>>,
) -> Option<R> {
    let mut timer = pin!(clock.wait_until(deadline));
    poll_fn(|context| match call.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => timer.as_mut().poll(context).map(|()| None),
    })
    .await
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// How the attempts of one call are made, and how many were started.
struct CallPlan<N, C, A> {
    /// Returns the input of another attempt.
    next: N,
    classify: C,
    call: A,
    started: u32,
}

impl<N, C, A> CallPlan<N, C, A> {
    fn start<I, F>(&mut self, input: I) -> F
    where
        A: FnMut(u32, I) -> F,
    {
        self.started += 1;
        (self.call)(self.started, input)
    }
}

impl RetrierInner {
    /// Makes attempts until a result is final or must not be retried. The error is the time limit of the last attempt.
    async fn attempts<I, R, F: Future<Output = R>>(
        &self,
        mut input: I,
        plan: &mut CallPlan<
            impl FnMut() -> Option<I>,
            impl FnMut(&R) -> RetryAction,
            impl FnMut(u32, I) -> F,
        >,
        deadline: Option<Micros>,
    ) -> Result<R, Micros> {
        let mut retries = 0;
        loop {
            let result = self.hedged_attempt(input, plan).await;
            let action = match &result {
                Ok(result) => (plan.classify)(result),
                Err(_) => RetryAction::Retry,
            };
            if action == RetryAction::Finish || plan.started > self.settings.max {
                return result;
            }
            let now = self.settings.clock.now();
            let left = deadline.map(|deadline| deadline.saturating_sub(now));
            let Some(wait) = self.wait_before_retry(action, retries, left) else { return result };
            let Some(next) = (plan.next)() else { return result };
            if !self.take_from_budget() {
                return result;
            }
            count(&self.counters.retries);
            retries += 1;
            input = next;
            // The result is dropped first: it may hold a connection or a permit.
            drop(result);
            self.settings.clock.wait_until(now.saturating_add(wait)).await;
        }
    }

    /// The wait before the next attempt; `None` if the result is final, or the wait too long.
    fn wait_before_retry(&self, action: RetryAction, retries: u32, left: Option<Micros>) -> Option<Micros> {
        let doubled =
            self.settings.backoff.get().saturating_mul(1_u64.checked_shl(retries).unwrap_or(u64::MAX));
        let backoff = Micros::new(fastrand::u64(..=doubled.min(self.settings.max_backoff.get())));
        match (action, left) {
            (RetryAction::Finish, _) => None,
            (RetryAction::Retry, left) => Some(backoff).filter(|wait| left.is_none_or(|left| *wait < left)),
            (RetryAction::RetryAfter(after), None) => {
                (after <= self.settings.max_backoff).then(|| after.saturating_add(backoff))
            }
            (RetryAction::RetryAfter(after), Some(left)) => {
                [after.saturating_add(backoff), after].into_iter().find(|wait| *wait < left)
            }
        }
    }

    /// Makes one attempt, and a second one if the first takes longer than the hedge delay.
    async fn hedged_attempt<I, R, F: Future<Output = R>>(
        &self,
        input: I,
        plan: &mut CallPlan<
            impl FnMut() -> Option<I>,
            impl FnMut(&R) -> RetryAction,
            impl FnMut(u32, I) -> F,
        >,
    ) -> Result<R, Micros> {
        let mut first = pin!(self.timed_attempt(plan.start(input)));
        let Some(delay) = self.hedge_delay().filter(|_| plan.started <= self.settings.max) else {
            return first.await;
        };
        let clock = &self.settings.clock;
        if let Some(result) = run_until(clock, clock.now().saturating_add(delay), first.as_mut()).await {
            return result;
        }
        let Some(input) = (plan.next)().filter(|_| self.take_from_budget()) else { return first.await };
        count(&self.counters.hedges);
        let mut second = pin!(self.timed_attempt(plan.start(input)));
        let (mut has_first_failed, mut has_second_failed) = (false, false);
        let mut is_final = |result: &Result<R, Micros>| {
            result.as_ref().is_ok_and(|result| (plan.classify)(result) == RetryAction::Finish)
        };
        poll_fn(|context| {
            if !has_first_failed && let Poll::Ready(result) = first.as_mut().poll(context) {
                if has_second_failed || is_final(&result) {
                    return Poll::Ready(result);
                }
                has_first_failed = true;
            }
            if !has_second_failed && let Poll::Ready(result) = second.as_mut().poll(context) {
                let is_final = is_final(&result);
                if is_final {
                    count(&self.counters.hedge_wins);
                }
                if has_first_failed || is_final {
                    return Poll::Ready(result);
                }
                has_second_failed = true;
            }
            Poll::Pending
        })
        .await
    }

    /// Makes one attempt within its time limit, and records its latency.
    async fn timed_attempt<R>(&self, attempt: impl Future<Output = R>) -> Result<R, Micros> {
        let clock = &self.settings.clock;
        let stopwatch = self.latencies.as_ref().map(|latencies| Stopwatch {
            latencies,
            clock,
            started_at: clock.now(),
            has_ended: false,
        });
        let result = match self.settings.attempt_time_limit {
            None => Ok(attempt.await),
            Some(limit) => {
                let deadline = clock.now().saturating_add(limit);
                cancel_at(clock, deadline, attempt).await.ok_or_else(|| {
                    count(&self.counters.time_limit_exceeded);
                    limit
                })
            }
        };
        if let Some(stopwatch) = stopwatch {
            stopwatch.end();
        }
        result
    }

    fn hedge_delay(&self) -> Option<Micros> {
        self.hedge_delay.or_else(|| self.latencies.as_ref()?.percentile(self.settings.clock.now()))
    }

    fn take_from_budget(&self) -> bool {
        let is_taken = self.budget.try_take();
        if !is_taken {
            count(&self.counters.budget_exhausted);
        }
        is_taken
    }
}

/// Records the latency of an attempt.
///
/// A cancelled attempt would have taken longer than the time until then. It is recorded from the percentile on: without the
/// slowest attempts the percentile would be too low, and with those that lost against a hedge as well.
struct Stopwatch<'a> {
    latencies: &'a RecentLatencies,
    clock: &'a Clock,
    started_at: Micros,
    has_ended: bool,
}

impl Stopwatch<'_> {
    /// Records an attempt that ended by itself or by its time limit.
    fn end(mut self) {
        self.has_ended = true;
    }
}

impl Drop for Stopwatch<'_> {
    fn drop(&mut self) {
        let now = self.clock.now();
        let latency = now.saturating_sub(self.started_at);
        if self.has_ended || self.latencies.percentile(now).is_some_and(|percentile| latency >= percentile) {
            self.latencies.record(latency, now);
        }
    }
}
