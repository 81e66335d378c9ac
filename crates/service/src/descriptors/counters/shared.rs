//! Counts under the keys of envoyproxy/ratelimit, so that a fleet of theirs and one of ours count together.
//!
//! ```text
//!   <prefix><domain>_<key>_<value>_…_<start of the window>      INCRBY hits, EXPIRE length + something
//! ```
//!
//! The window is that of this machine's wall clock, as it is there. What lies in the key lies there, so whoever changes a letter
//! of it counts alone.

use super::{
    CountedKey, Hold, Home, Shelf,
    store::{Patience, Punctual},
    units::{Count, Hits, UnitCounters},
};
use crate::descriptors::settings::{SharedKeys, WindowTime};
use std::{fmt::Write as _, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{BuildError, CounterStore, FailureMode, Increment, StoreError};
use tidegate_policy::descriptors::CalendarUnit;

/// Counts of all keys, by unit, where others count as well.
#[derive(Debug)]
pub(crate) struct SharedCounters {
    tally: Arc<dyn CounterStore>,
    seconds: Option<Arc<dyn CounterStore>>,
    prefix: String,
    /// Numbers are kept for less than this longer than they are of use, so that not all go at once.
    jitter: Duration,
    time: WindowTime,
    outage: FailureMode,
    /// What counts while the store is away, where that is to be.
    local: Option<UnitCounters>,
}

impl SharedCounters {
    pub(super) fn new(home: &Home, keys: &SharedKeys, patience: &Arc<Patience>) -> Result<Self, BuildError> {
        let punctual =
            |tally: &Arc<dyn CounterStore>| Arc::new(Punctual::new(tally, patience)) as Arc<dyn CounterStore>;
        let local = match home.outage {
            FailureMode::Local { .. } => Some(UnitCounters::new(&home.in_memory())?),
            FailureMode::Open | FailureMode::Closed => None,
        };
        Ok(Self {
            tally: punctual(&keys.tally),
            seconds: keys.per_second.as_ref().map(punctual),
            prefix: keys.prefix.clone(),
            jitter: keys.jitter,
            time: keys.time.clone(),
            outage: home.outage,
            local,
        })
    }

    pub(crate) async fn count(&self, hits: &[Hits<'_>]) -> Vec<Count> {
        let now = self.time.now();
        let additions = hits.iter().map(|hit| self.addition(hit, now)).collect();
        let sums = self.sums(hits, additions).await;
        let mut counts = Vec::with_capacity(hits.len());
        for (hit, sum) in hits.iter().zip(sums) {
            counts.push(match sum {
                Some(sum) => known(sum, hit.unit, now),
                None => self.without_store(hit).await,
            });
        }
        counts
    }

    pub(crate) async fn hold(&self, hits: &[Hits<'_>]) -> Vec<(Count, Hold)> {
        let now = self.time.now();
        let additions: Vec<_> = hits.iter().map(|hit| self.addition(hit, now)).collect();
        let sums = self.sums(hits, additions.clone()).await;
        let mut held = Vec::with_capacity(hits.len());
        for ((hit, sum), Increment { key, ttl: kept, .. }) in hits.iter().zip(sums).zip(additions) {
            held.push(match (sum, &self.local) {
                (Some(sum), _) => {
                    let tally = self.tally_of(hit.unit).clone();
                    (known(sum, hit.unit, now), Hold::Number { tally, key, kept, count: hit.cost() })
                }
                (None, Some(local)) => {
                    let held = local.hold(std::slice::from_ref(hit)).await.pop();
                    held.map_or((Count::Closed, Hold::Nothing), |(count, hold)| (degraded(count), hold))
                }
                (None, None) => (self.without_store(hit).await, Hold::Nothing),
            });
        }
        held
    }

    pub(crate) async fn reset(&self, key: CountedKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        let key = self.key(key, unit, self.time.now());
        self.tally_of(unit).delete(vec![key]).await
    }

    /// What all numbers are then; `None` of those whose store is away.
    async fn sums(&self, hits: &[Hits<'_>], additions: Vec<Increment>) -> Vec<Option<i64>> {
        let count = additions.len();
        let is_second =
            |place: usize| self.seconds.is_some() && Shelf::of(Some(hits[place].unit)) == Shelf::Seconds;
        let (mut usual, mut seconds) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        for (place, addition) in additions.into_iter().enumerate() {
            let (places, part) = if is_second(place) { &mut seconds } else { &mut usual };
            places.push(place);
            part.push(addition);
        }
        let mut sums = vec![None; count];
        let ask = |tally: &Arc<dyn CounterStore>, (places, part): (Vec<usize>, Vec<Increment>)| {
            let answer = (!part.is_empty()).then(|| tally.add(part));
            async move {
                let told = match answer {
                    Some(answer) => answer.await.unwrap_or_default(),
                    None => Vec::new(),
                };
                (places, told)
            }
        };
        let parts =
            tokio::join!(ask(&self.tally, usual), ask(self.seconds.as_ref().unwrap_or(&self.tally), seconds));
        for (places, told) in [parts.0, parts.1] {
            places.into_iter().zip(told).for_each(|(place, sum)| sums[place] = Some(sum));
        }
        sums
    }

    async fn without_store(&self, hit: &Hits<'_>) -> Count {
        match (&self.local, self.outage) {
            (Some(local), _) => {
                let count = local.count(std::slice::from_ref(hit)).await.pop();
                count.map_or(Count::Closed, degraded)
            }
            (None, FailureMode::Open) => Count::Open,
            (None, FailureMode::Closed | FailureMode::Local { .. }) => Count::Closed,
        }
    }

    fn addition(&self, hit: &Hits<'_>, now: Micros) -> Increment {
        let more = match self.jitter.as_secs() {
            0 => 0,
            most => fastrand::u64(0..most),
        };
        Increment {
            key: self.key(hit.key, hit.unit, now),
            count: i64::try_from(hit.cost()).unwrap_or(i64::MAX),
            ttl: Duration::from_secs(hit.unit.seconds().saturating_add(more)),
        }
    }

    /// The key, letter by letter as they write it.
    fn key(&self, key: CountedKey<'_>, unit: CalendarUnit, now: Micros) -> String {
        let now = now.get() / Micros::from_secs(1).get();
        let mut text = format!("{}{}_", self.prefix, key.domain);
        for entry in key.entries {
            // Writing to a text does not fail.
            let _ = write!(text, "{}_{}_", entry.key, entry.value);
        }
        let _ = write!(text, "{}", now - now % unit.seconds());
        text
    }

    fn tally_of(&self, unit: CalendarUnit) -> &Arc<dyn CounterStore> {
        let seconds = self.seconds.as_ref().filter(|_| Shelf::of(Some(unit)) == Shelf::Seconds);
        seconds.unwrap_or(&self.tally)
    }
}

fn known(sum: i64, unit: CalendarUnit, now: Micros) -> Count {
    let length = Micros::from_secs(unit.seconds()).get();
    Count::Known { after: u64::try_from(sum).unwrap_or(0), ends: Some(length - now.get() % length) }
}

fn degraded(count: Count) -> Count {
    match count {
        Count::Known { after, ends } => Count::Local { after, ends },
        other => other,
    }
}
