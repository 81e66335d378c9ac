//! Counts in the Redis keys of envoyproxy/ratelimit, so that both services share their counters.
//!
//! ```text
//!   <prefix><domain>_<key>_<value>_…_<start of the window>      INCRBY hits, EXPIRE length + jitter
//! ```
//!
//! As in envoyproxy/ratelimit, the wall clock of the machine selects the window. The format of the keys must match exactly;
//! any difference splits the counters.

use super::{
    CountReservation, CounterStores, DescriptorKey, StoreKind,
    store::{DeadlineStore, DecisionDeadline},
    units::{KeyHits, UnitCount, UnitCounters},
};
use crate::descriptors::settings::{SharedKeys, WindowClock};
use std::{fmt::Write as _, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{BuildError, CounterStore, FailureMode, Increment, StoreError};
use tidegate_policy::descriptors::CalendarUnit;

/// The counters of all keys, by unit, shared with envoyproxy/ratelimit.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    store: Arc<dyn CounterStore>,
    per_second: Option<Arc<dyn CounterStore>>,
    prefix: String,
    /// The maximum random extension of a TTL, so that keys do not all expire at once.
    jitter: Duration,
    window_clock: WindowClock,
    outage: FailureMode,
    /// Counts in memory while the store is unavailable, in the local failure mode.
    fallback: Option<UnitCounters>,
}

impl SharedCounters {
    pub(super) fn new(
        stores: &CounterStores,
        keys: &SharedKeys,
        deadline: &Arc<DecisionDeadline>,
    ) -> Result<Self, BuildError> {
        let with_deadline = |store: &Arc<dyn CounterStore>| {
            Arc::new(DeadlineStore::new(store, deadline)) as Arc<dyn CounterStore>
        };
        let fallback = match stores.outage {
            FailureMode::Local { .. } => Some(UnitCounters::new(&stores.in_memory())?),
            FailureMode::Open | FailureMode::Closed => None,
        };
        Ok(Self {
            store: with_deadline(&keys.counter_store),
            per_second: keys.per_second.as_ref().map(with_deadline),
            prefix: keys.prefix.clone(),
            jitter: keys.jitter,
            window_clock: keys.window_time.clone(),
            outage: stores.outage,
            fallback,
        })
    }

    pub(crate) async fn count(&self, hits: &[KeyHits<'_>]) -> Vec<UnitCount> {
        let now = self.window_clock.now();
        let increments = hits.iter().map(|hit| self.increment_for(hit, now)).collect();
        let sums = self.increment(hits, increments).await;
        let mut counts = Vec::with_capacity(hits.len());
        for (hit, sum) in hits.iter().zip(sums) {
            counts.push(match sum {
                Some(sum) => known_count(sum, hit.unit, now),
                None => self.count_without_store(hit).await,
            });
        }
        counts
    }

    pub(crate) async fn reserve(&self, hits: &[KeyHits<'_>]) -> Vec<(UnitCount, CountReservation)> {
        let now = self.window_clock.now();
        let increments: Vec<_> = hits.iter().map(|hit| self.increment_for(hit, now)).collect();
        let sums = self.increment(hits, increments.clone()).await;
        let mut reserved = Vec::with_capacity(hits.len());
        for ((hit, sum), Increment { key, ttl, .. }) in hits.iter().zip(sums).zip(increments) {
            reserved.push(match (sum, &self.fallback) {
                (Some(sum), _) => {
                    let store = self.store_for(hit.unit).clone();
                    (
                        known_count(sum, hit.unit, now),
                        CountReservation::Counter { store, key, ttl, count: hit.cost() },
                    )
                }
                (None, Some(local)) => {
                    let reservation = local.reserve(std::slice::from_ref(hit)).await.pop();
                    reservation.map_or((UnitCount::FailClosed, CountReservation::None), |(count, hold)| {
                        (to_local(count), hold)
                    })
                }
                (None, None) => (self.count_without_store(hit).await, CountReservation::None),
            });
        }
        reserved
    }

    pub(crate) async fn reset(&self, key: DescriptorKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        let key = self.redis_key(key, unit, self.window_clock.now());
        self.store_for(unit).delete(vec![key]).await
    }

    /// Increments the counters. Returns their new values; `None` if the store is unavailable.
    async fn increment(&self, hits: &[KeyHits<'_>], increments: Vec<Increment>) -> Vec<Option<i64>> {
        let count = increments.len();
        let is_second = |index: usize| {
            self.per_second.is_some() && StoreKind::for_unit(Some(hits[index].unit)) == StoreKind::PerSecond
        };
        let (mut default, mut seconds) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (index, increment) in increments.into_iter().enumerate() {
            let (indices, part) = if is_second(index) { &mut seconds } else { &mut default };
            indices.push(index);
            part.push(increment);
        }
        let mut sums = vec![None; count];
        let add = |store: &Arc<dyn CounterStore>, (indices, part): (Vec<usize>, Vec<Increment>)| {
            let reply = (!part.is_empty()).then(|| store.add(part));
            async move {
                let counts = match reply {
                    Some(reply) => reply.await.unwrap_or_default(),
                    None => Vec::new(),
                };
                (indices, counts)
            }
        };
        let parts = tokio::join!(
            add(&self.store, default),
            add(self.per_second.as_ref().unwrap_or(&self.store), seconds)
        );
        for (indices, counts) in [parts.0, parts.1] {
            indices.into_iter().zip(counts).for_each(|(index, sum)| sums[index] = Some(sum));
        }
        sums
    }

    async fn count_without_store(&self, hit: &KeyHits<'_>) -> UnitCount {
        match (&self.fallback, self.outage) {
            (Some(local), _) => {
                let count = local.count(std::slice::from_ref(hit)).await.pop();
                count.map_or(UnitCount::FailClosed, to_local)
            }
            (None, FailureMode::Open) => UnitCount::FailOpen,
            (None, FailureMode::Closed | FailureMode::Local { .. }) => UnitCount::FailClosed,
        }
    }

    fn increment_for(&self, hit: &KeyHits<'_>, now: Micros) -> Increment {
        let jitter = match self.jitter.as_secs() {
            0 => 0,
            max => fastrand::u64(0..max),
        };
        Increment {
            key: self.redis_key(hit.key, hit.unit, now),
            count: i64::try_from(hit.cost()).unwrap_or(i64::MAX),
            ttl: Duration::from_secs(hit.unit.seconds().saturating_add(jitter)),
        }
    }

    /// Formats the key exactly as envoyproxy/ratelimit does.
    fn redis_key(&self, key: DescriptorKey<'_>, unit: CalendarUnit, now: Micros) -> String {
        let now = now.get() / Micros::from_secs(1).get();
        let mut text = format!("{}{}_", self.prefix, key.domain);
        for entry in key.entries {
            // Writing to a `String` does not fail.
            let _ = write!(text, "{}_{}_", entry.key, entry.value);
        }
        let _ = write!(text, "{}", now - now % unit.seconds());
        text
    }

    fn store_for(&self, unit: CalendarUnit) -> &Arc<dyn CounterStore> {
        let seconds =
            self.per_second.as_ref().filter(|_| StoreKind::for_unit(Some(unit)) == StoreKind::PerSecond);
        seconds.unwrap_or(&self.store)
    }
}

fn known_count(sum: i64, unit: CalendarUnit, now: Micros) -> UnitCount {
    let length = Micros::from_secs(unit.seconds()).get();
    UnitCount::Counted { after: u64::try_from(sum).unwrap_or(0), ends: Some(length - now.get() % length) }
}

fn to_local(count: UnitCount) -> UnitCount {
    match count {
        UnitCount::Counted { after, ends } => UnitCount::Local { after, ends },
        other => other,
    }
}
