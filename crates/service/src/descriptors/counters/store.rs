//! A store that answers in time, or not at all.

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
    /// When the decision must be made that the questions of this task belong to: one may need several, one after the other.
    static DEADLINE: Micros;
}

/// How long stores may take, and how often one was away or took longer.
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

    /// All questions of a decision, which together have as long as one, or as long as the caller waits if that is less.
    pub(crate) async fn scope<T>(
        &self,
        caller_timeout: Option<Duration>,
        decision: impl Future<Output = T>,
    ) -> T {
        let deadline = caller_timeout.map_or(self.timeout, |caller| caller.min(self.timeout));
        DEADLINE.scope(self.clock.now().plus(deadline.into()), decision).await
    }

    /// How often a store was away or late.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// An answer in the time that is left, as of now: it may be waited for by another task.
    fn with_timeout<T: Send + 'static>(
        self: &Arc<Self>,
        reply: StoreFuture<Result<T, StoreError>>,
    ) -> StoreFuture<Result<T, StoreError>> {
        let (left, patience) = (self.remaining(), self.clone());
        Box::pin(async move {
            let reply = tokio::time::timeout(left, reply).await.unwrap_or(Err(StoreError::Timeout));
            if reply.is_err() {
                patience.failures.fetch_add(1, Ordering::Relaxed);
            }
            reply
        })
    }

    /// How long a question may take that is asked now.
    fn remaining(&self) -> Duration {
        let left = DEADLINE.try_with(|ends| ends.since(self.clock.now()).into());
        left.unwrap_or(self.timeout)
    }
}

/// A store that answers in time, or is away.
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
    fn add(&self, additions: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        self.deadline.with_timeout(self.store.add(additions))
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.deadline.with_timeout(self.store.delete(keys))
    }
}
