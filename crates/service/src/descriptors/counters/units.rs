//! Counts per unit of the calendar, without a limit of their own.
//!
//! There is one limiter for each unit, of a fixed window with room for more hits than anybody sends: what it has left says how
//! many were counted. So the limits that counts are compared with can change, or come with the request, and nothing has to be
//! kept for each of them.

use super::{CountReservation, CounterStores, StoreKind, key::DescriptorKey};
use std::collections::HashMap;
use tidegate_core::{Decision, Quota};
use tidegate_limiter::{BuildError, Check, Limiter, StoreError, decide_all, reserve_all};
use tidegate_policy::descriptors::CalendarUnit;

/// So many hits of one key can be told apart in one unit; whoever has more is over every limit.
const MAX_COUNT: u64 = 1 << 52;
/// More at once are over every limit too.
const MAX_HITS: u64 = 1 << 32;

/// Counts of all keys, by unit.
#[derive(Debug)]
pub(crate) struct UnitCounters {
    limiters: [Limiter; 7],
}

/// Hits of one key in one unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHits<'a> {
    pub(crate) key: DescriptorKey<'a>,
    pub(crate) unit: CalendarUnit,
    pub(crate) hits: u64,
}

/// How many there are of a key, with those that were asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitCount {
    /// So many, until the window ends in so many microseconds; that is not known of a key that was never hit.
    Known { after: u64, ends: Option<u64> },
    /// The same in this process alone, because the store is away.
    Local { after: u64, ends: Option<u64> },
    /// The store is away, and then nothing is limited.
    Open,
    /// The store is away, and then nothing is decided.
    Closed,
}

impl UnitCounters {
    pub(crate) fn new(stores: &CounterStores) -> Result<Self, BuildError> {
        let mut limiters = Vec::with_capacity(CalendarUnit::ALL.len());
        for unit in CalendarUnit::ALL {
            let name = format!("descriptors.{}", unit.name().to_ascii_lowercase());
            let quota = unit_window(MAX_COUNT, unit)?;
            let shelf = StoreKind::for_unit(Some(unit));
            limiters.push(stores.builder(&name, stores.capacity, shelf).build(quota)?);
        }
        let limiters = limiters.try_into().map_err(|_| BuildError::NoQuota)?;
        Ok(Self { limiters })
    }

    /// Counts all of them, in one round trip where there is one to make.
    pub(crate) async fn count(&self, hits: &[KeyHits<'_>]) -> Vec<UnitCount> {
        if let [only] = hits
            && self.limiter(only.unit).is_in_memory()
        {
            return vec![to_unit_count(&self.limiter(only.unit).check_cost(&only.key, only.cost()), 0)];
        }
        let mut counts = vec![UnitCount::Closed; hits.len()];
        let later = later_hits(hits);
        for shelf in [StoreKind::Default, StoreKind::PerSecond] {
            let is_there = |(_, hit): &(usize, &KeyHits<'_>)| StoreKind::for_unit(Some(hit.unit)) == shelf;
            let (places, part): (Vec<_>, Vec<_>) =
                hits.iter().enumerate().filter(is_there).map(|(place, hit)| (place, *hit)).unzip();
            for (place, decision) in places.into_iter().zip(decide_all(self.to_checks(&part)).await) {
                counts[place] = to_unit_count(&decision, later[place]);
            }
        }
        counts
    }

    fn to_checks(&self, hits: &[KeyHits<'_>]) -> Vec<Check> {
        hits.iter().map(|hit| self.limiter(hit.unit).prepare(&hit.key).cost(hit.cost())).collect()
    }

    /// Counts all of them, so that each can be given back.
    pub(crate) async fn reserve(&self, hits: &[KeyHits<'_>]) -> Vec<(UnitCount, CountReservation)> {
        let claims = reserve_all(self.to_checks(hits)).await;
        let held = claims.into_iter().zip(later_hits(hits)).map(|(claim, behind)| match claim {
            Some(claim) => (to_unit_count(claim.decision(), behind), CountReservation::from_claim(claim)),
            None => (UnitCount::Closed, CountReservation::None),
        });
        held.collect()
    }

    /// Forgets what was counted of a key in this unit.
    pub(crate) async fn reset(&self, key: DescriptorKey<'_>, unit: CalendarUnit) -> Result<(), StoreError> {
        self.limiter(unit).key(&key).reset().await
    }

    fn limiter(&self, unit: CalendarUnit) -> &Limiter {
        let [second, minute, hour, day, week, month, year] = &self.limiters;
        match unit {
            CalendarUnit::Second => second,
            CalendarUnit::Minute => minute,
            CalendarUnit::Hour => hour,
            CalendarUnit::Day => day,
            CalendarUnit::Week => week,
            CalendarUnit::Month => month,
            CalendarUnit::Year => year,
        }
    }
}

impl KeyHits<'_> {
    pub(super) fn cost(&self) -> u64 {
        self.hits.min(MAX_HITS)
    }
}

/// So many in each unit, counted from the epoch.
pub(crate) fn unit_window(amount: u64, unit: CalendarUnit) -> Result<Quota, BuildError> {
    let period = std::time::Duration::from_secs(unit.seconds());
    Ok(Quota::amount_per_period(amount, period).fixed_window_from_epoch()?)
}

/// How many hits of the same key come behind each, in the same request: they are counted together, and each is told of those
/// before it only.
fn later_hits(hits: &[KeyHits<'_>]) -> Vec<u64> {
    let mut sums: HashMap<(DescriptorKey<'_>, CalendarUnit), u64> = HashMap::with_capacity(hits.len());
    let mut later: Vec<u64> = hits
        .iter()
        .rev()
        .map(|hit| {
            let sum = sums.entry((hit.key, hit.unit)).or_default();
            let behind = *sum;
            *sum = sum.saturating_add(hit.cost());
            behind
        })
        .collect();
    later.reverse();
    later
}

fn to_unit_count(decision: &Decision, later: u64) -> UnitCount {
    let is_from_store = !decision.is_degraded();
    if decision.is_fail_closed() {
        return UnitCount::Closed;
    }
    if decision.limit() == u64::MAX {
        return UnitCount::Open;
    }
    // One that was not granted found no room at all, and is over every limit.
    let after = match decision.is_granted() {
        true => decision.limit().saturating_sub(decision.remaining()).saturating_sub(later),
        false => MAX_COUNT,
    };
    let ends = Some(decision.reset_after().get()).filter(|ends| *ends > 0);
    if is_from_store { UnitCount::Known { after, ends } } else { UnitCount::Local { after, ends } }
}
