//! A store that answers in time, or not at all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::Quota;
use tidegate_engine::{
    Store, StoreError,
    store::{Pending, Reply, Request},
};

/// A store that answers in time, or is away; it counts how often that was.
#[derive(Debug)]
pub(crate) struct Punctual {
    store: Arc<dyn Store>,
    deadline: Duration,
    failures: Arc<AtomicU64>,
}

impl Punctual {
    pub(crate) fn new(store: Arc<dyn Store>, deadline: Duration) -> Self {
        Self { store, deadline, failures: Arc::default() }
    }

    /// How often it was away or late.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

impl Store for Punctual {
    fn perform(&self, request: Request) -> Pending<Result<Reply, StoreError>> {
        let (reply, failures) = (self.store.perform(request), self.failures.clone());
        let deadline = self.deadline;
        Box::pin(async move {
            let reply = tokio::time::timeout(deadline, reply).await.unwrap_or(Err(StoreError::Late));
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
