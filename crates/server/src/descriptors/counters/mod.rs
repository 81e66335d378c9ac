//! How many there are: counts per unit, and limiters with quotas of their own.

mod key;
mod places;
mod store;
mod units;

pub(super) use key::CountedKey;
pub(super) use places::{Before, Charge, Manner, PlaceLimiter, charge_all};
pub(super) use units::{Count, Held, Hits, UnitCounters, window};

use super::settings::ServiceSettings;
use std::sync::Arc;
use store::Punctual;
use tidegate_engine::{Capacity, Clock, Limiter, Outage, SharedLimiter, SharedLimiterBuilder, Store};

/// Where counts live.
#[derive(Clone, Debug)]
pub(super) struct Home {
    /// The same store twice: one that is asked, and one that tells how that went.
    store: Option<(Arc<dyn Store>, Arc<Punctual>)>,
    outage: Outage,
    clock: Clock,
    pub(super) capacity: Capacity,
}

impl Home {
    pub(super) fn new(settings: &ServiceSettings) -> Self {
        let punctual = |store: &Arc<dyn Store>| {
            let punctual = Arc::new(Punctual::new(store.clone(), settings.deadline));
            (punctual.clone() as Arc<dyn Store>, punctual)
        };
        Self {
            store: settings.store.as_ref().map(punctual),
            outage: settings.outage,
            clock: settings.clock.clone(),
            capacity: settings.capacity,
        }
    }

    /// All that is asked for one decision.
    pub(super) async fn decision<T>(&self, decision: impl Future<Output = T>) -> T {
        match &self.store {
            Some((_, store)) => store.decision(decision).await,
            None => decision.await,
        }
    }

    /// How often the store was away or late.
    pub(super) fn failures(&self) -> u64 {
        self.store.as_ref().map_or(0, |(_, store)| store.failures())
    }

    fn builder(&self, name: &str, capacity: Capacity) -> SharedLimiterBuilder {
        let memory = Limiter::builder().clock(self.clock.clone()).capacity(capacity);
        let builder = SharedLimiter::builder(name).memory(memory).on_outage(self.outage);
        match &self.store {
            Some((store, _)) => builder.shared_store(store.clone()),
            None => builder,
        }
    }
}
