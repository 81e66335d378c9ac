//! Counters per unit, and limiters with their own quotas.

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

/// The stores of the counters.
#[derive(Clone, Debug)]
pub(super) struct CounterStores {
    store: Option<Arc<dyn Store>>,
    /// The store of limits per second, if it is a separate one.
    per_second: Option<Arc<dyn Store>>,
    deadline: Option<Arc<DecisionDeadline>>,
    outage: FailureMode,
    clock: Clock,
    lease: Option<Duration>,
    pub(super) capacity: Capacity,
}

/// Selects one of the two stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKind {
    Default,
    /// The store of limits per second.
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
            let (store, deadline) = (store.as_ref()?, deadline.as_ref()?);
            Some(Arc::new(DeadlineStore::new(store, deadline)) as Arc<dyn Store>)
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

    /// Runs one decision with its deadline, which the timeout of the caller may shorten.
    pub(super) async fn with_deadline<T>(
        &self,
        caller_timeout: Option<Duration>,
        decision: impl Future<Output = T>,
    ) -> T {
        match &self.deadline {
            Some(deadline) => deadline.scope(caller_timeout, decision).await,
            None => decision.await,
        }
    }

    /// The number of requests to a store that failed or timed out.
    pub(super) fn failures(&self) -> u64 {
        self.deadline.as_ref().map_or(0, |deadline| deadline.failures())
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

    /// How tokens are prefetched; `lease` overrides the default.
    fn prefetch(&self, lease: Option<Duration>) -> Option<TokenPrefetch> {
        lease.or(self.lease).map(|ttl| TokenPrefetch::default().ttl(ttl))
    }

    /// The same settings without a store.
    fn in_memory(&self) -> Self {
        Self { store: None, per_second: None, ..self.clone() }
    }
}

/// The counters of all keys, by unit.
#[derive(Debug)]
pub(super) enum DescriptorCounters {
    /// Counts in Tidegate limiters.
    Limiters(UnitCounters),
    /// Counts in the Redis keys of envoyproxy/ratelimit.
    Shared(SharedCounters),
}

impl DescriptorCounters {
    pub(super) fn new(stores: &CounterStores, settings: &ServiceSettings) -> Result<Self, BuildError> {
        match (&settings.shared_keys, &stores.deadline) {
            (Some(keys), Some(deadline)) => SharedCounters::new(stores, keys, deadline).map(Self::Shared),
            _ => UnitCounters::new(stores).map(Self::Limiters),
        }
    }

    /// Counts all keys, in one round trip per store.
    pub(super) async fn count(&self, hits: &[KeyHits<'_>]) -> Vec<UnitCount> {
        match self {
            Self::Limiters(counters) => counters.count(hits).await,
            Self::Shared(counters) => counters.count(hits).await,
        }
    }

    /// Counts all keys with reservations that can be cancelled.
    pub(super) async fn reserve(&self, hits: &[KeyHits<'_>]) -> Vec<(UnitCount, CountReservation)> {
        match self {
            Self::Limiters(counters) => counters.reserve(hits).await,
            Self::Shared(counters) => counters.reserve(hits).await,
        }
    }

    /// Resets the counter of a key in this unit.
    pub(super) async fn reset(&self, key: DescriptorKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        match self {
            Self::Limiters(counters) => counters.reset(key, unit).await,
            Self::Shared(counters) => counters.reset(key, unit).await,
        }
    }
}
