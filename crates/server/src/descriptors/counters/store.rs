//! A store that answers in time, or not at all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, Quota};
use tidegate_engine::{
    Clock, Store, StoreError,
    store::{Pending, Reply, Request},
};

tokio::task_local! {
    /// When the decision must be made that the questions of this task belong to: one may need several, one after the other.
    static ENDS: Micros;
}

/// A store that answers in time, or is away; it counts how often that was.
#[derive(Debug)]
pub(crate) struct Punctual {
    store: Arc<dyn Store>,
    deadline: Duration,
    clock: Clock,
    failures: Arc<AtomicU64>,
}

impl Punctual {
    pub(crate) fn new(store: Arc<dyn Store>, deadline: Duration) -> Self {
        Self { store, deadline, clock: Clock::system(), failures: Arc::default() }
    }

    /// All questions of a decision, which together have as long as one.
    pub(crate) async fn decision<T>(&self, decision: impl Future<Output = T>) -> T {
        ENDS.scope(self.clock.now().plus(self.deadline.into()), decision).await
    }

    /// How long a question may take that is asked now.
    fn left(&self) -> Duration {
        let left = ENDS.try_with(|ends| ends.since(self.clock.now()).into());
        left.unwrap_or(self.deadline)
    }

    /// How often it was away or late.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Store for Punctual {
    fn perform(&self, request: Request) -> Pending<Result<Reply, StoreError>> {
        let (reply, failures) = (self.store.perform(request), self.failures.clone());
        let left = self.left();
        Box::pin(async move {
            let reply = tokio::time::timeout(left, reply).await.unwrap_or(Err(StoreError::Late));
            if reply.is_err() {
                failures.fetch_add(1, Ordering::Relaxed);
            }
            reply
        })
    }

    fn adapt(&self, quota: Quota) -> Quota {
        self.store.adapt(quota)
    }
}
