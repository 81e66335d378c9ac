//! A store wrapper that enforces the deadline of a decision.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{
    Clock, CounterStore, FailureMode, Increment, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};

tokio::task_local! {
    /// The deadline of the current decision, which may send several requests to the store one after the other.
    static DEADLINE: Micros;
}

/// The deadline of decisions, and the number of store requests that failed or timed out.
#[derive(Debug)]
pub(crate) struct DecisionDeadline {
    timeout: Duration,
    clock: Clock,
    failures: AtomicU64,
}

impl DecisionDeadline {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { timeout: deadline, clock: Clock::system(), failures: AtomicU64::new(0) }
    }

    /// Runs a decision. All its store requests share one deadline, which the timeout of the caller may shorten.
    pub(crate) async fn scope<T>(
        &self,
        caller_timeout: Option<Duration>,
        decision: impl Future<Output = T>,
    ) -> T {
        let deadline = caller_timeout.map_or(self.timeout, |caller| caller.min(self.timeout));
        DEADLINE.scope(self.clock.now().saturating_add(deadline.into()), decision).await
    }

    /// The number of store requests that failed or timed out.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Limits a reply to the remaining time, which is computed now since another task may await the reply.
    fn with_timeout<T: Send + 'static>(
        self: &Arc<Self>,
        reply: StoreFuture<Result<T, StoreError>>,
    ) -> StoreFuture<Result<T, StoreError>> {
        let (remaining, deadline) = (self.remaining(), self.clone());
        Box::pin(async move {
            let reply = tokio::time::timeout(remaining, reply).await.unwrap_or(Err(StoreError::Timeout));
            if reply.is_err() {
                deadline.failures.fetch_add(1, Ordering::Relaxed);
            }
            reply
        })
    }

    /// The time until the deadline of the current decision.
    fn remaining(&self) -> Duration {
        let remaining = DEADLINE.try_with(|deadline| deadline.saturating_sub(self.clock.now()).into());
        remaining.unwrap_or(self.timeout)
    }
}

/// A store that fails with a timeout at the deadline of a decision.
#[derive(Debug)]
pub(crate) struct DeadlineStore<S: ?Sized> {
    store: Arc<S>,
    deadline: Arc<DecisionDeadline>,
}

impl<S: ?Sized> DeadlineStore<S> {
    pub(crate) fn new(store: &Arc<S>, deadline: &Arc<DecisionDeadline>) -> Self {
        Self { store: store.clone(), deadline: deadline.clone() }
    }
}

impl Store for DeadlineStore<dyn Store> {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        self.deadline.with_timeout(self.store.execute(request))
    }

    fn effective_quota(&self, quota: Quota) -> Quota {
        self.store.effective_quota(quota)
    }

    fn wait_recovered(&self) -> StoreFuture<()> {
        self.store.wait_recovered()
    }

    fn add_failure_mode(&self, mode: FailureMode) {
        self.store.add_failure_mode(mode);
    }
}

impl CounterStore for DeadlineStore<dyn CounterStore> {
    fn add(&self, increments: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        self.deadline.with_timeout(self.store.add(increments))
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.deadline.with_timeout(self.store.delete(keys))
    }
}
