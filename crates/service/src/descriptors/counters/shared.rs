//! Counts under the keys of envoyproxy/ratelimit, so that a fleet of theirs and one of ours count together.
//!
//! ```text
//!   <prefix><domain>_<key>_<value>_…_<start of the window>      INCRBY hits, EXPIRE length + something
//! ```
//!
//! The window is that of this machine's wall clock, as it is there. What lies in the key lies there, so whoever changes a letter
//! of it counts alone.

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

/// Counts of all keys, by unit, where others count as well.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    store: Arc<dyn CounterStore>,
    per_second: Option<Arc<dyn CounterStore>>,
    prefix: String,
    /// Numbers are kept for less than this longer than they are of use, so that not all go at once.
    jitter: Duration,
    window_clock: WindowClock,
    outage: FailureMode,
    /// What counts while the store is away, where that is to be.
    fallback: Option<UnitCounters>,
}

impl SharedCounters {
    pub(super) fn new(
        stores: &CounterStores,
        keys: &SharedKeys,
        deadline: &Arc<DecisionDeadline>,
    ) -> Result<Self, BuildError> {
        let with_deadline = |tally: &Arc<dyn CounterStore>| {
            Arc::new(DeadlineStore::new(tally, deadline)) as Arc<dyn CounterStore>
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
        let additions = hits.iter().map(|hit| self.increment_for(hit, now)).collect();
        let sums = self.increment(hits, additions).await;
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
        let additions: Vec<_> = hits.iter().map(|hit| self.increment_for(hit, now)).collect();
        let sums = self.increment(hits, additions.clone()).await;
        let mut reserved = Vec::with_capacity(hits.len());
        for ((hit, sum), Increment { key, ttl: kept, .. }) in hits.iter().zip(sums).zip(additions) {
            reserved.push(match (sum, &self.fallback) {
                (Some(sum), _) => {
                    let tally = self.store_for(hit.unit).clone();
                    (
                        known_count(sum, hit.unit, now),
                        CountReservation::Counter { store: tally, key, ttl: kept, count: hit.cost() },
                    )
                }
                (None, Some(local)) => {
                    let held = local.reserve(std::slice::from_ref(hit)).await.pop();
                    held.map_or((UnitCount::Closed, CountReservation::None), |(count, hold)| {
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

    /// What all numbers are then; `None` of those whose store is away.
    async fn increment(&self, hits: &[KeyHits<'_>], additions: Vec<Increment>) -> Vec<Option<i64>> {
        let count = additions.len();
        let is_second = |index: usize| {
            self.per_second.is_some() && StoreKind::for_unit(Some(hits[index].unit)) == StoreKind::PerSecond
        };
        let (mut default, mut seconds) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (place, addition) in additions.into_iter().enumerate() {
            let (places, part) = if is_second(place) { &mut seconds } else { &mut default };
            places.push(place);
            part.push(addition);
        }
        let mut sums = vec![None; count];
        let ask = |tally: &Arc<dyn CounterStore>, (places, part): (Vec<usize>, Vec<Increment>)| {
            let answer = (!part.is_empty()).then(|| tally.add(part));
            async move {
                let counts = match answer {
                    Some(answer) => answer.await.unwrap_or_default(),
                    None => Vec::new(),
                };
                (places, counts)
            }
        };
        let parts = tokio::join!(
            ask(&self.store, default),
            ask(self.per_second.as_ref().unwrap_or(&self.store), seconds)
        );
        for (places, told) in [parts.0, parts.1] {
            places.into_iter().zip(told).for_each(|(place, sum)| sums[place] = Some(sum));
        }
        sums
    }

    async fn count_without_store(&self, hit: &KeyHits<'_>) -> UnitCount {
        match (&self.fallback, self.outage) {
            (Some(local), _) => {
                let count = local.count(std::slice::from_ref(hit)).await.pop();
                count.map_or(UnitCount::Closed, to_local)
            }
            (None, FailureMode::Open) => UnitCount::Open,
            (None, FailureMode::Closed | FailureMode::Local { .. }) => UnitCount::Closed,
        }
    }

    fn increment_for(&self, hit: &KeyHits<'_>, now: Micros) -> Increment {
        let more = match self.jitter.as_secs() {
            0 => 0,
            most => fastrand::u64(0..most),
        };
        Increment {
            key: self.redis_key(hit.key, hit.unit, now),
            count: i64::try_from(hit.cost()).unwrap_or(i64::MAX),
            ttl: Duration::from_secs(hit.unit.seconds().saturating_add(more)),
        }
    }

    /// The key, letter by letter as they write it.
    fn redis_key(&self, key: DescriptorKey<'_>, unit: CalendarUnit, now: Micros) -> String {
        let now = now.get() / Micros::from_secs(1).get();
        let mut text = format!("{}{}_", self.prefix, key.domain);
        for entry in key.entries {
            // Writing to a text does not fail.
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
    UnitCount::Known { after: u64::try_from(sum).unwrap_or(0), ends: Some(length - now.get() % length) }
}

fn to_local(count: UnitCount) -> UnitCount {
    match count {
        UnitCount::Known { after, ends } => UnitCount::Local { after, ends },
        other => other,
    }
}
