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
    pub trouble: Option<String>,
    /// How often it answered.
    pub answered: u64,
    /// How often it did not, or too late.
    pub failed: u64,
    /// How many answers took at most as long as the time at the same place of [`StoreStatus::TIMES`], and no less than the
    /// one before; the last are those that took longer.
    pub times: [u64; Self::TIMES.len() + 1],
    /// How long all of them took together.
    pub took: Micros,
}

impl StoreStatus {
    /// The ends of the ranges in which times are counted.
    pub const TIMES: [Micros; 14] = [
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
pub(crate) struct Measured {
    store: Arc<dyn Store>,
    counts: Arc<Counts>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Counts {
    failed: AtomicU64,
    times: [AtomicU64; StoreStatus::TIMES.len() + 1],
    took: AtomicU64,
}

impl Measured {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Clock) -> Self {
        Self { store, counts: Arc::default(), clock }
    }

    pub(crate) fn status(&self, name: Option<&str>) -> StoreStatus {
        let times = self.counts.times.each_ref().map(|count| count.load(Relaxed));
        StoreStatus {
            name: name.map(str::to_owned),
            trouble: self.store.last_error(),
            answered: times.iter().sum(),
            failed: self.counts.failed.load(Relaxed),
            times,
            took: Micros::new(self.counts.took.load(Relaxed)),
        }
    }
}

impl Counts {
    fn note(&self, took: Micros, outcome: &Result<StoreReply, StoreError>) {
        if outcome.is_err() {
            self.failed.fetch_add(1, Relaxed);
            return;
        }
        let place = StoreStatus::TIMES.partition_point(|end| *end < took);
        self.times[place].fetch_add(1, Relaxed);
        self.took.fetch_add(took.get(), Relaxed);
    }
}

impl Store for Measured {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let (counts, clock) = (self.counts.clone(), self.clock.clone());
        let begun = clock.now();
        let answer = self.store.execute(request);
        Box::pin(async move {
            let answer = answer.await;
            counts.note(clock.now().since(begun), &answer);
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
