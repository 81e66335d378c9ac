//! How many there are: counts per unit, and limiters with quotas of their own.

mod key;
mod limiter;
mod local_cache;
mod reservation;
mod shared;
mod store;
mod units;

pub(super) use key::DescriptorKey;
pub(super) use limiter::{
    CountPurpose, LazyLimiter, LazyLimiterSettings, LimitAction, LimiterCharge, PriorResult, charge_all,
};
pub(super) use local_cache::LocalCache;
pub(super) use reservation::{CountReservation, CountReservations};
pub(super) use units::{KeyHits, UnitCount, unit_window};

use super::settings::ServiceSettings;
use shared::SharedCounters;
use std::{sync::Arc, time::Duration};
use store::{DeadlineStore, DecisionDeadline};
use tidegate_limiter::{
    BuildError, Capacity, Clock, FailureMode, Limiter, LimiterBuilder, Store, StoreError, TokenPrefetch,
};
use tidegate_policy::descriptors::CalendarUnit;
use units::UnitCounters;

/// Where counts live.
#[derive(Clone, Debug)]
pub(super) struct CounterStores {
    store: Option<Arc<dyn Store>>,
    /// The store of what is counted per second, where that is another.
    per_second: Option<Arc<dyn Store>>,
    deadline: Option<Arc<DecisionDeadline>>,
    outage: FailureMode,
    clock: Clock,
    lease: Option<Duration>,
    pub(super) capacity: Capacity,
}

/// Which of two stores counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKind {
    Default,
    /// That of what is counted per second.
    PerSecond,
}

impl StoreKind {
    pub(super) fn for_unit(unit: Option<CalendarUnit>) -> Self {
        if unit == Some(CalendarUnit::Second) { Self::PerSecond } else { Self::Default }
    }
}

impl CounterStores {
    pub(super) fn new(settings: &ServiceSettings) -> Self {
        let has_store = settings.store.is_some() || settings.shared_keys.is_some();
        let deadline = has_store.then(|| Arc::new(DecisionDeadline::new(settings.deadline)));
        let with_deadline = |store: &Option<Arc<dyn Store>>| {
            let (store, patience) = (store.as_ref()?, deadline.as_ref()?);
            Some(Arc::new(DeadlineStore::new(store, patience)) as Arc<dyn Store>)
        };
        Self {
            store: with_deadline(&settings.store),
            per_second: with_deadline(&settings.per_second),
            deadline,
            outage: settings.outage,
            clock: settings.clock.clone(),
            lease: settings.lease,
            capacity: settings.capacity,
        }
    }

    /// All that is asked for one decision, of a caller that waits for so long.
    pub(super) async fn with_deadline<T>(
        &self,
        caller_timeout: Option<Duration>,
        decision: impl Future<Output = T>,
    ) -> T {
        match &self.deadline {
            Some(patience) => patience.scope(caller_timeout, decision).await,
            None => decision.await,
        }
    }

    /// How often a store was away or late.
    pub(super) fn failures(&self) -> u64 {
        self.deadline.as_ref().map_or(0, |patience| patience.failures())
    }

    fn builder(&self, name: &str, capacity: Capacity, kind: StoreKind) -> LimiterBuilder {
        let builder = Limiter::builder().name(name).clock(self.clock.clone()).capacity(capacity);
        let builder = builder.failure_mode(self.outage);
        let seconds = self.per_second.as_ref().filter(|_| kind == StoreKind::PerSecond);
        match seconds.or(self.store.as_ref()) {
            Some(store) => builder.shared_store(store.clone()),
            None => builder,
        }
    }

    /// How tokens are taken ahead where a limit does not say.
    fn prefetch(&self, lease: Option<Duration>) -> Option<TokenPrefetch> {
        lease.or(self.lease).map(|ttl| TokenPrefetch::default().ttl(ttl))
    }

    /// The same without any store.
    fn in_memory(&self) -> Self {
        Self { store: None, per_second: None, ..self.clone() }
    }
}

/// Counts of all keys, by unit.
#[derive(Debug)]
pub(super) enum DescriptorCounters {
    /// In limiters of ours.
    Limiters(UnitCounters),
    /// Under keys that a fleet of theirs counts with, too.
    Shared(SharedCounters),
}

impl DescriptorCounters {
    pub(super) fn new(stores: &CounterStores, settings: &ServiceSettings) -> Result<Self, BuildError> {
        match (&settings.shared_keys, &stores.deadline) {
            (Some(keys), Some(patience)) => SharedCounters::new(stores, keys, patience).map(Self::Shared),
            _ => UnitCounters::new(stores).map(Self::Limiters),
        }
    }

    /// Counts all of them, in one round trip where there is one to make.
    pub(super) async fn count(&self, hits: &[KeyHits<'_>]) -> Vec<UnitCount> {
        match self {
            Self::Limiters(counters) => counters.count(hits).await,
            Self::Shared(counters) => counters.count(hits).await,
        }
    }

    /// Counts all of them, so that each can be given back.
    pub(super) async fn reserve(&self, hits: &[KeyHits<'_>]) -> Vec<(UnitCount, CountReservation)> {
        match self {
            Self::Limiters(counters) => counters.reserve(hits).await,
            Self::Shared(counters) => counters.reserve(hits).await,
        }
    }

    /// Forgets what was counted of a key in this unit.
    pub(super) async fn reset(&self, key: DescriptorKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        match self {
            Self::Limiters(counters) => counters.reset(key, unit).await,
            Self::Shared(counters) => counters.reset(key, unit).await,
        }
    }
}
