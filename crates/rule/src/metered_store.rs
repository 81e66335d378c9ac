//! Stores with metrics: number of requests, failures and latency.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{
    Clock, FailureMode, Store,
    store::{
        OverrideReply, OverrideRequest, RuntimeAffinity, StoreError, StoreFuture, StoreReply, StoreRequest,
    },
};

/// The current status of a store named by the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Its name; `None` for the default one.
    pub name: Option<String>,
    /// Why decisions are made without it, if they are.
    pub last_error: Option<String>,
    /// The number of replies.
    pub replies: u64,
    /// The number of failures and timeouts.
    pub failures: u64,
    /// The number of replies per latency bucket: up to the bound at the same index of
    /// [`StoreStatus::LATENCY_BOUNDS`] and above the previous one; the last bucket has no upper bound.
    pub latency_counts: [u64; Self::LATENCY_BOUNDS.len() + 1],
    /// The sum of all latencies.
    pub latency_sum: Micros,
}

impl StoreStatus {
    /// The upper bounds of the latency buckets.
    pub const LATENCY_BOUNDS: [Micros; 14] = [
        Micros::new(50),
        Micros::new(100),
        Micros::new(200),
        Micros::new(500),
        Micros::new(1_000),
        Micros::new(2_000),
        Micros::new(5_000),
        Micros::new(10_000),
        Micros::new(20_000),
        Micros::new(50_000),
        Micros::new(100_000),
        Micros::new(200_000),
        Micros::new(500_000),
        Micros::new(1_000_000),
    ];
}

/// A store with metrics.
#[derive(Debug)]
pub(crate) struct MeteredStore {
    store: Arc<dyn Store>,
    counters: Arc<StoreCounters>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct StoreCounters {
    failures: AtomicU64,
    latency_counts: [AtomicU64; StoreStatus::LATENCY_BOUNDS.len() + 1],
    latency_sum: AtomicU64,
}

impl MeteredStore {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, counters: Arc::default(), clock }
    }

    pub(crate) fn status(&self, name: Option<&str>) -> StoreStatus {
        let latency_counts = self.counters.latency_counts.each_ref().map(|count| count.load(Relaxed));
        StoreStatus {
            name: name.map(str::to_owned),
            last_error: self.store.last_error(),
            replies: latency_counts.iter().sum(),
            failures: self.counters.failures.load(Relaxed),
            latency_counts,
            latency_sum: Micros::new(self.counters.latency_sum.load(Relaxed)),
        }
    }
}

impl StoreCounters {
    fn record(&self, latency: Micros, outcome: &Result<StoreReply, StoreError>) {
        if outcome.is_err() {
            self.failures.fetch_add(1, Relaxed);
            return;
        }
        let bucket = StoreStatus::LATENCY_BOUNDS.partition_point(|upper_bound| *upper_bound < latency);
        self.latency_counts[bucket].fetch_add(1, Relaxed);
        self.latency_sum.fetch_add(latency.get(), Relaxed);
    }
}

impl Store for MeteredStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let (counters, clock) = (self.counters.clone(), self.clock.clone());
        let started_at = clock.now();
        let reply = self.store.execute(request);
        Box::pin(async move {
            let reply = reply.await;
            counters.record(clock.now().saturating_sub(started_at), &reply);
            reply
        })
    }

    fn effective_quota(&self, quota: Quota) -> Quota {
        self.store.effective_quota(quota)
    }

    fn runtime_affinity(&self) -> RuntimeAffinity {
        self.store.runtime_affinity()
    }

    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        self.store.ready()
    }

    fn wait_recovered(&self) -> StoreFuture<()> {
        self.store.wait_recovered()
    }

    fn overrides(&self, request: OverrideRequest) -> StoreFuture<Result<OverrideReply, StoreError>> {
        self.store.overrides(request)
    }

    fn add_failure_mode(&self, mode: FailureMode) {
        self.store.add_failure_mode(mode);
    }

    fn last_error(&self) -> Option<String> {
        self.store.last_error()
    }
}
