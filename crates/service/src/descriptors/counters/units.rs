//! Counters per calendar unit, independent of any limit.
//!
//! Each unit has one limiter with a fixed window and a very large quota; its remaining quota yields the count. So limits can
//! change or be part of the request, and no state per limit is needed.

use super::{CountReservation, CounterStores, StoreKind, key::DescriptorKey};
use std::collections::HashMap;
use tidegate_core::{Decision, Quota};
use tidegate_limiter::{BuildError, Check, Limiter, StoreError, decide_all, reserve_all};
use tidegate_policy::descriptors::CalendarUnit;

/// The largest count of a key in one unit. A key with more hits is over every limit.
const MAX_COUNT: u64 = 1 << 52;
/// The largest number of hits of one request.
const MAX_HITS: u64 = 1 << 32;

/// The counters of all keys, by unit.
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

/// The count of a key after the hits of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitCount {
    /// The count, and the microseconds until the window ends; `None` for a key without hits.
    Counted { after: u64, ends: Option<u64> },
    /// The count of this process only, since the store is unavailable.
    Local { after: u64, ends: Option<u64> },
    /// The store is unavailable, and requests are allowed.
    FailOpen,
    /// The store is unavailable, and requests fail.
    FailClosed,
}

impl UnitCounters {
    pub(crate) fn new(stores: &CounterStores) -> Result<Self, BuildError> {
        let mut limiters = Vec::with_capacity(CalendarUnit::ALL.len());
        for unit in CalendarUnit::ALL {
            let name = format!("descriptors.{}", unit.name().to_ascii_lowercase());
            let quota = unit_window(MAX_COUNT, unit)?;
            let store_kind = StoreKind::for_unit(Some(unit));
            limiters.push(stores.builder(&name, stores.capacity, store_kind).build(quota)?);
        }
        let limiters = limiters.try_into().map_err(|_| BuildError::NoQuota)?;
        Ok(Self { limiters })
    }

    /// Counts all keys, in one round trip per store.
    pub(crate) async fn count(&self, hits: &[KeyHits<'_>]) -> Vec<UnitCount> {
        if let [only] = hits
            && self.limiter(only.unit).is_in_memory()
        {
            return vec![to_unit_count(&self.limiter(only.unit).check_cost(&only.key, only.cost()), 0)];
        }
        let mut counts = vec![UnitCount::FailClosed; hits.len()];
        let later = later_hits(hits);
        for kind in [StoreKind::Default, StoreKind::PerSecond] {
            let is_of_kind = |(_, hit): &(usize, &KeyHits<'_>)| StoreKind::for_unit(Some(hit.unit)) == kind;
            let (indices, part): (Vec<_>, Vec<_>) =
                hits.iter().enumerate().filter(is_of_kind).map(|(index, hit)| (index, *hit)).unzip();
            for (index, decision) in indices.into_iter().zip(decide_all(self.to_checks(&part)).await) {
                counts[index] = to_unit_count(&decision, later[index]);
            }
        }
        counts
    }

    fn to_checks(&self, hits: &[KeyHits<'_>]) -> Vec<Check> {
        hits.iter().map(|hit| self.limiter(hit.unit).prepare(&hit.key).cost(hit.cost())).collect()
    }

    /// Counts all keys with reservations that can be cancelled.
    pub(crate) async fn reserve(&self, hits: &[KeyHits<'_>]) -> Vec<(UnitCount, CountReservation)> {
        let claims = reserve_all(self.to_checks(hits)).await;
        let reserved = claims.into_iter().zip(later_hits(hits)).map(|(claim, later)| match claim {
            Some(claim) => (to_unit_count(claim.decision(), later), CountReservation::from_claim(claim)),
            None => (UnitCount::FailClosed, CountReservation::None),
        });
        reserved.collect()
    }

    /// Resets the counter of a key in this unit.
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

/// A quota of `amount` per unit, in windows aligned to the epoch.
pub(crate) fn unit_window(amount: u64, unit: CalendarUnit) -> Result<Quota, BuildError> {
    let period = std::time::Duration::from_secs(unit.seconds());
    Ok(Quota::amount_per_period(amount, period).fixed_window_from_epoch()?)
}

/// Returns, for each entry, the hits of the same key that follow it in the request. All are counted in one step, but each
/// result includes only the entries up to its own.
fn later_hits(hits: &[KeyHits<'_>]) -> Vec<u64> {
    let mut sums: HashMap<(DescriptorKey<'_>, CalendarUnit), u64> = HashMap::with_capacity(hits.len());
    let mut later: Vec<u64> = hits
        .iter()
        .rev()
        .map(|hit| {
            let sum = sums.entry((hit.key, hit.unit)).or_default();
            let following = *sum;
            *sum = sum.saturating_add(hit.cost());
            following
        })
        .collect();
    later.reverse();
    later
}

fn to_unit_count(decision: &Decision, later: u64) -> UnitCount {
    let is_from_store = !decision.is_degraded();
    if decision.is_fail_closed() {
        return UnitCount::FailClosed;
    }
    if decision.limit() == u64::MAX {
        return UnitCount::FailOpen;
    }
    // A denied check means that the counter is exhausted, so the key is over every limit.
    let after = match decision.is_granted() {
        true => decision.limit().saturating_sub(decision.remaining()).saturating_sub(later),
        false => MAX_COUNT,
    };
    let ends = Some(decision.reset_after().get()).filter(|ends| *ends > 0);
    if is_from_store { UnitCount::Counted { after, ends } } else { UnitCount::Local { after, ends } }
}
