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
    static ENDS: Micros;
}

/// How long stores may take, and how often one was away or took longer.
#[derive(Debug)]
pub(crate) struct Patience {
    deadline: Duration,
    clock: Clock,
    failures: AtomicU64,
}

impl Patience {
    pub(crate) fn new(deadline: Duration) -> Self {
        Self { deadline, clock: Clock::system(), failures: AtomicU64::new(0) }
    }

    /// All questions of a decision, which together have as long as one, or as long as the caller waits if that is less.
    pub(crate) async fn decision<T>(&self, caller: Option<Duration>, decision: impl Future<Output = T>) -> T {
        let deadline = caller.map_or(self.deadline, |caller| caller.min(self.deadline));
        ENDS.scope(self.clock.now().plus(deadline.into()), decision).await
    }

    /// How often a store was away or late.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// An answer in the time that is left, as of now: it may be waited for by another task.
    fn answer<T: Send + 'static>(
        self: &Arc<Self>,
        reply: StoreFuture<Result<T, StoreError>>,
    ) -> StoreFuture<Result<T, StoreError>> {
        let (left, patience) = (self.left(), self.clone());
        Box::pin(async move {
            let reply = tokio::time::timeout(left, reply).await.unwrap_or(Err(StoreError::Timeout));
            if reply.is_err() {
                patience.failures.fetch_add(1, Ordering::Relaxed);
            }
            reply
        })
    }

    /// How long a question may take that is asked now.
    fn left(&self) -> Duration {
        let left = ENDS.try_with(|ends| ends.since(self.clock.now()).into());
        left.unwrap_or(self.deadline)
    }
}

/// A store that answers in time, or is away.
#[derive(Debug)]
pub(crate) struct Punctual<S: ?Sized> {
    store: Arc<S>,
    patience: Arc<Patience>,
}

impl<S: ?Sized> Punctual<S> {
    pub(crate) fn new(store: &Arc<S>, patience: &Arc<Patience>) -> Self {
        Self { store: store.clone(), patience: patience.clone() }
    }
}

impl Store for Punctual<dyn Store> {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        self.patience.answer(self.store.execute(request))
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

impl CounterStore for Punctual<dyn CounterStore> {
    fn add(&self, additions: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        self.patience.answer(self.store.add(additions))
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.patience.answer(self.store.delete(keys))
    }
}
