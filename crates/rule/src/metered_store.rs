//! Stores that are watched: how often they were asked, and how long they took.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};
use tidegate_core::{Micros, Quota};
use tidegate_limiter::{
    Clock, FailureMode, Store,
    store::{RuntimeAffinity, StoreError, StoreFuture, StoreReply, StoreRequest},
};

/// A store that settings name, as it is at this moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreStatus {
    /// Its name; the default one has none.
    pub name: Option<String>,
    /// Why decisions are made without it, if they are.
    pub last_error: Option<String>,
    /// How often it answered.
    pub replies: u64,
    /// How often it did not, or too late.
    pub failures: u64,
    /// How many answers took at most as long as the time at the same place of [`StoreStatus::LATENCY_BOUNDS`], and no less than the
    /// one before; the last are those that took longer.
    pub latency_counts: [u64; Self::LATENCY_BOUNDS.len() + 1],
    /// How long all of them took together.
    pub latency_sum: Micros,
}

impl StoreStatus {
    /// The ends of the ranges in which times are counted.
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

/// A store that is watched.
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
        let times = self.counters.latency_counts.each_ref().map(|count| count.load(Relaxed));
        StoreStatus {
            name: name.map(str::to_owned),
            last_error: self.store.last_error(),
            replies: times.iter().sum(),
            failures: self.counters.failures.load(Relaxed),
            latency_counts: times,
            latency_sum: Micros::new(self.counters.latency_sum.load(Relaxed)),
        }
    }
}

impl StoreCounters {
    fn record(&self, took: Micros, outcome: &Result<StoreReply, StoreError>) {
        if outcome.is_err() {
            self.failures.fetch_add(1, Relaxed);
            return;
        }
        let place = StoreStatus::LATENCY_BOUNDS.partition_point(|end| *end < took);
        self.latency_counts[place].fetch_add(1, Relaxed);
        self.latency_sum.fetch_add(took.get(), Relaxed);
    }
}

impl Store for MeteredStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let (counts, clock) = (self.counters.clone(), self.clock.clone());
        let begun = clock.now();
        let answer = self.store.execute(request);
        Box::pin(async move {
            let answer = answer.await;
            counts.record(clock.now().since(begun), &answer);
            answer
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

    fn add_failure_mode(&self, mode: FailureMode) {
        self.store.add_failure_mode(mode);
    }

    fn last_error(&self) -> Option<String> {
        self.store.last_error()
    }
}
