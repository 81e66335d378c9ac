//! How many there are: counts per unit, and limiters with quotas of their own.

mod hold;
mod key;
mod over;
mod places;
mod shared;
mod store;
mod units;

pub(super) use hold::{Hold, Reserved};
pub(super) use key::CountedKey;
pub(super) use over::OverKeys;
pub(super) use places::{Before, Charge, Manner, PlaceLimiter, PlaceTerms, Purpose, charge_all};
pub(super) use units::{Count, Hits, window};

use super::settings::ServiceSettings;
use shared::SharedCounters;
use std::{sync::Arc, time::Duration};
use store::{Patience, Punctual};
use tidegate_limiter::{
    BuildError, Capacity, Clock, FailureMode, Limiter, LimiterBuilder, Store, StoreError, TokenPrefetch,
};
use tidegate_policy::descriptors::CalendarUnit;
use units::UnitCounters;

/// Where counts live.
#[derive(Clone, Debug)]
pub(super) struct Home {
    store: Option<Arc<dyn Store>>,
    /// The store of what is counted per second, where that is another.
    seconds: Option<Arc<dyn Store>>,
    patience: Option<Arc<Patience>>,
    outage: FailureMode,
    clock: Clock,
    lease: Option<Duration>,
    pub(super) capacity: Capacity,
}

/// Which of two stores counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shelf {
    Usual,
    /// That of what is counted per second.
    Seconds,
}

impl Shelf {
    pub(super) fn of(unit: Option<CalendarUnit>) -> Self {
        if unit == Some(CalendarUnit::Second) { Self::Seconds } else { Self::Usual }
    }
}

impl Home {
    pub(super) fn new(settings: &ServiceSettings) -> Self {
        let is_elsewhere = settings.store.is_some() || settings.shared.is_some();
        let patience = is_elsewhere.then(|| Arc::new(Patience::new(settings.deadline)));
        let punctual = |store: &Option<Arc<dyn Store>>| {
            let (store, patience) = (store.as_ref()?, patience.as_ref()?);
            Some(Arc::new(Punctual::new(store, patience)) as Arc<dyn Store>)
        };
        Self {
            store: punctual(&settings.store),
            seconds: punctual(&settings.per_second),
            patience,
            outage: settings.outage,
            clock: settings.clock.clone(),
            lease: settings.lease,
            capacity: settings.capacity,
        }
    }

    /// All that is asked for one decision, of a caller that waits for so long.
    pub(super) async fn decision<T>(&self, caller: Option<Duration>, decision: impl Future<Output = T>) -> T {
        match &self.patience {
            Some(patience) => patience.decision(caller, decision).await,
            None => decision.await,
        }
    }

    /// How often a store was away or late.
    pub(super) fn failures(&self) -> u64 {
        self.patience.as_ref().map_or(0, |patience| patience.failures())
    }

    fn builder(&self, name: &str, capacity: Capacity, shelf: Shelf) -> LimiterBuilder {
        let builder = Limiter::builder().name(name).clock(self.clock.clone()).capacity(capacity);
        let builder = builder.failure_mode(self.outage);
        let seconds = self.seconds.as_ref().filter(|_| shelf == Shelf::Seconds);
        match seconds.or(self.store.as_ref()) {
            Some(store) => builder.shared_store(store.clone()),
            None => builder,
        }
    }

    /// How tokens are taken ahead where a limit does not say.
    fn ahead(&self, own: Option<Duration>) -> Option<TokenPrefetch> {
        own.or(self.lease).map(|ttl| TokenPrefetch::default().ttl(ttl))
    }

    /// The same without any store.
    fn in_memory(&self) -> Self {
        Self { store: None, seconds: None, ..self.clone() }
    }
}

/// Counts of all keys, by unit.
#[derive(Debug)]
pub(super) enum Counters {
    /// In limiters of ours.
    Own(UnitCounters),
    /// Under keys that a fleet of theirs counts with, too.
    Shared(SharedCounters),
}

impl Counters {
    pub(super) fn new(home: &Home, settings: &ServiceSettings) -> Result<Self, BuildError> {
        match (&settings.shared, &home.patience) {
            (Some(keys), Some(patience)) => SharedCounters::new(home, keys, patience).map(Self::Shared),
            _ => UnitCounters::new(home).map(Self::Own),
        }
    }

    /// Counts all of them, in one round trip where there is one to make.
    pub(super) async fn count(&self, hits: &[Hits<'_>]) -> Vec<Count> {
        match self {
            Self::Own(counters) => counters.count(hits).await,
            Self::Shared(counters) => counters.count(hits).await,
        }
    }

    /// Counts all of them, so that each can be given back.
    pub(super) async fn hold(&self, hits: &[Hits<'_>]) -> Vec<(Count, Hold)> {
        match self {
            Self::Own(counters) => counters.hold(hits).await,
            Self::Shared(counters) => counters.hold(hits).await,
        }
    }

    /// Forgets what was counted of a key in this unit.
    pub(super) async fn reset(&self, key: CountedKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        match self {
            Self::Own(counters) => counters.reset(key, unit).await,
            Self::Shared(counters) => counters.reset(key, unit).await,
        }
    }
}
