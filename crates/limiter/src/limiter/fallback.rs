//! Decisions without the store.
//!
//! A decision that misses its deadline is denied, unless the mode is [`FailureMode::Open`]: the store may have decided
//! otherwise, and one late reply does not make it unavailable. While the store is unavailable, the failure mode decides.
//!
//! If each process counts up to the whole quota ([`FailureMode::Local`] with one node, the default), it also counts what
//! the store grants it. So during an outage a key gets no more than the quota minus what this process granted it before.
//! After an outage both must grant, until everything granted without the store has expired ("dual counting"): no process
//! ever exceeds the bound, and all of them together do not exceed the bound times their number.
//!
//! Slots and totals do not expire, so they are dual-counted for an hour. Afterwards the store alone decides; a total that was
//! used during the outage can then be used once more. Otherwise a reset in another process would never apply in this one.

use super::{
    BuildError, LimiterBuilder, LocalBackend, MemoryLimiter, OutageBound, Overflow, Reservation,
    reservation::LocalCharge,
};
use crate::{
    memory::PermitHold,
    store::{PermitMode, QuotaSelection, StoreError},
};
use arc_swap::ArcSwap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{
    AlgorithmKind, CarryOver, Decision, Demand, Effect, Micros, Quota, SettingError, algorithm::Concurrency,
};

/// The decision while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMode {
    /// Allow everything, including decisions that miss their deadline.
    Open,
    /// Deny everything.
    Closed,
    /// Count in this process, with its share of the quota. With one node that is the whole quota, less what the store has
    /// granted to this process. With several nodes a key starts with a full share at the outage, so it gets at most one more
    /// burst of that share.
    Local {
        /// The number of processes that share the quota.
        nodes: u64,
    },
}

impl Default for FailureMode {
    fn default() -> Self {
        Self::Local { nodes: 1 }
    }
}

/// The retry interval of a decision that the store did not make.
const RETRY_AFTER: Micros = Micros::from_secs(1);
/// How long slots and totals are dual-counted after an outage: unlike tokens of a rate, they do not expire.
const RETENTION_WITHOUT_EXPIRY: Micros = Micros::from_secs(3_600);

/// Makes decisions without the store.
pub(super) enum Fallback {
    Open,
    Closed {
        limit: u64,
    },
    Local {
        nodes: u64,
        selection: QuotaSelection,
        memory: Box<LimiterBuilder>,
        limiter: ArcSwap<MemoryLimiter>,
        /// When everything granted without the store has expired; zero if there was no such grant.
        dual_count_until: AtomicU64,
    },
}

/// The count of one check in this process, made before the store is called.
pub(super) enum LocalCount {
    /// Not counted yet.
    Uncounted,
    /// Counted; spent if the store grants it too.
    Counted(Box<Reservation>),
}

/// A key in the limiter of this process, if it counts what the store grants.
pub(super) struct FallbackKey {
    limiter: Option<Arc<MemoryLimiter>>,
    key: String,
}

impl FallbackKey {
    /// Counts tokens that the store has granted.
    pub(super) fn count(&self, tokens: u64) {
        if let Some(limiter) = self.limiter.as_ref().filter(|_| tokens > 0) {
            limiter.bucket(self.key.as_str(), 0).decide(Demand::forced(tokens));
        }
    }
}

impl Fallback {
    /// `memory` has the settings of the table of this process.
    pub(super) fn new(
        mode: FailureMode,
        memory: LimiterBuilder,
        quotas: &[Quota],
        selection: QuotaSelection,
    ) -> Result<Self, BuildError> {
        Ok(match mode {
            FailureMode::Open => Self::Open,
            FailureMode::Closed => Self::Closed { limit: min_limit(quotas) },
            FailureMode::Local { nodes } => {
                let limiter = build(memory.clone(), &split_quotas(nodes, quotas), selection)?;
                let (limiter, dual_count_until) = (ArcSwap::from_pointee(limiter), AtomicU64::new(0));
                Self::Local { nodes, selection, memory: Box::new(memory), limiter, dual_count_until }
            }
        })
    }

    /// The upper bound on what a quota admits without the store.
    pub(super) fn bound(&self, quota: &Quota) -> OutageBound {
        match self {
            Self::Open => OutageBound::Everything,
            Self::Closed { .. } => OutageBound::Nothing,
            Self::Local { nodes: 1, .. } => OutageBound::WholePerProcess,
            Self::Local { nodes, .. } => OutageBound::SharePerProcess(split_quota(*nodes, quota).bound()),
        }
    }

    /// Replaces the quotas. Usage is converted as `how` specifies.
    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        if let Self::Local { nodes, selection, memory, limiter, dual_count_until } = self {
            let (old, shares) = (limiter.load_full(), split_quotas(*nodes, quotas));
            let latest = latest_deadline(&old, &shares);
            if old.change_all(&shares, how).is_err() {
                limiter.store(build_successor(memory, &old, &shares, *selection, how)?);
            }
            dual_count_until.fetch_min(latest, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Sets the quotas of overrides, as the tiers behind the declared quotas.
    pub(super) fn set_override_quotas(&self, quotas: &[Quota]) -> Result<(), SettingError> {
        match self {
            Self::Local { nodes, limiter, .. } => {
                limiter.load().set_override_quotas(&split_quotas(*nodes, quotas))
            }
            Self::Open | Self::Closed { .. } => Ok(()),
        }
    }

    /// Continues with the counts of the fallback that this one replaces.
    pub(super) fn take_over(&self, old: &Self) {
        if let Self::Local { selection, memory, limiter, dual_count_until, .. } = self
            && let Self::Local { limiter: old, dual_count_until: until, .. } = old
        {
            let (old, new) = (old.load_full(), limiter.load_full());
            let quotas = new.quotas();
            let latest = latest_deadline(&old, &quotas);
            // A slot in use is released to its own limiter, so limiters with slots are reused; others may get a new table.
            let has_same_table =
                old.size().capacity == new.size().capacity && old.overflow() == new.overflow();
            let stays = has_same_table || quotas.iter().any(Quota::is_concurrency);
            if stays && old.change_all(&quotas, CarryOver::Keep).is_ok() {
                limiter.store(old);
            } else if let Ok(new) = build_successor(memory, &old, &quotas, *selection, CarryOver::Keep) {
                limiter.store(new);
            }
            dual_count_until.fetch_max(until.load(Ordering::Relaxed).min(latest), Ordering::Relaxed);
        }
    }

    /// Resets a key in the table of this process.
    pub(super) fn reset(&self, key: &str) {
        if let Self::Local { limiter, .. } = self {
            limiter.load().bucket(key, 0).reset();
        }
    }

    pub(super) fn decide(&self, error: &StoreError, key: &str, tier: usize, demand: Demand) -> Decision {
        match self.limiter_for(error) {
            Ok(limiter) => {
                self.extend_dual_counting(&limiter, limiter.bucket(key, tier).decide(demand)).into_degraded()
            }
            Err(decision) => decision,
        }
    }

    pub(super) fn take_up_to(&self, error: &StoreError, key: &str, tier: usize, max: u64) -> (u64, Decision) {
        match self.limiter_for(error) {
            Ok(limiter) => {
                let (taken, decision) = limiter.bucket(key, tier).take_up_to(max);
                (taken, self.extend_dual_counting(&limiter, decision).into_degraded())
            }
            Err(decision) if decision.is_granted() => (max, decision),
            Err(decision) => (0, decision),
        }
    }

    pub(super) fn take(
        &self,
        error: &StoreError,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: PermitMode,
    ) -> Reservation {
        match self.limiter_for(error) {
            Ok(limiter) => {
                let taken = reserve(&limiter, key, tier, demand, slots);
                self.extend_dual_counting(&limiter, *taken.decision());
                taken.into_degraded()
            }
            Err(decision) => Reservation::empty(decision),
        }
    }

    /// Counts a check in this process before the store is called, while dual counting is active; returns the denial if it
    /// exceeds the quota.
    pub(super) fn reserve_local(
        &self,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: PermitMode,
    ) -> Result<LocalCount, Box<Reservation>> {
        let Some(limiter) = self.local_limiter().filter(|_| self.is_dual_counting()) else {
            return Ok(LocalCount::Uncounted);
        };
        // A key without a cell got nothing without the store. A full table would deny it although the store has room.
        if limiter.overflow() == Overflow::Deny && !limiter.has_cell(key) {
            return Ok(LocalCount::Uncounted);
        }
        if demand.effect == Effect::Peek {
            let decision = limiter.bucket(key, tier).decide(demand);
            return match decision.is_granted() {
                true => Ok(LocalCount::Uncounted),
                false => Err(Box::new(Reservation::empty(decision.into_degraded()))),
            };
        }
        let taken = reserve(&limiter, key, tier, demand, slots);
        match taken.decision().is_allowed() {
            true => Ok(LocalCount::Counted(Box::new(taken))),
            false => Err(Box::new(taken.into_degraded())),
        }
    }

    /// Counts what the store has granted; returns the charge, to be refunded together with the store's.
    pub(super) fn charge_local(
        &self,
        local: LocalCount,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: PermitMode,
    ) -> Option<LocalCharge> {
        if demand.effect == Effect::Peek || demand.cost == 0 {
            return None;
        }
        let taken = match local {
            LocalCount::Counted(taken) => *taken,
            LocalCount::Uncounted => {
                let forced = Demand::forced(demand.cost);
                reserve(&self.local_limiter()?, key, tier, forced, slots)
            }
        };
        taken.into_local()
    }

    /// The key in the limiter of this process, to count what the store grants.
    pub(super) fn fallback_key(&self, key: &str) -> FallbackKey {
        FallbackKey { limiter: self.local_limiter(), key: key.to_owned() }
    }

    /// Whether this process must also grant what the store grants: a grant made without the store has not expired yet.
    pub(super) fn is_dual_counting(&self) -> bool {
        match self {
            Self::Local { dual_count_until, limiter, .. } => {
                let until = dual_count_until.load(Ordering::Relaxed);
                until != 0 && until > limiter.load().clock().now().get()
            }
            Self::Open | Self::Closed { .. } => false,
        }
    }

    /// The limiter of this process, if it counts up to the whole quota.
    fn local_limiter(&self) -> Option<Arc<MemoryLimiter>> {
        match self {
            Self::Local { nodes: 1, limiter, .. } => Some(limiter.load_full()),
            _ => None,
        }
    }

    /// The limiter of this process that decides after this error, or the fixed decision.
    fn limiter_for(&self, error: &StoreError) -> Result<Arc<MemoryLimiter>, Decision> {
        match self {
            Self::Open => Err(Decision::unlimited().into_degraded()),
            Self::Closed { limit } => Err(Decision::fail_closed(*limit, RETRY_AFTER)),
            Self::Local { limiter, .. } => match error {
                StoreError::Timeout => {
                    Err(Decision::fail_closed(min_limit(&limiter.load().quotas()), RETRY_AFTER))
                }
                _ => Ok(limiter.load_full()),
            },
        }
    }

    /// Extends dual counting until this grant, made without the store, expires.
    fn extend_dual_counting(&self, limiter: &MemoryLimiter, decision: Decision) -> Decision {
        if let Self::Local { nodes: 1, dual_count_until, .. } = self
            && decision.is_granted()
        {
            let quotas = limiter.quotas();
            let reset = match (decision.reset_after(), quotas.len()) {
                (Micros::MAX, _) => longest_retention(&quotas),
                (reset, 0 | 1) => reset,
                // The reset is that of the most restrictive quota.
                (reset, _) => reset.max(longest_retention(&quotas)),
            };
            dual_count_until.fetch_max(limiter.clock().now().saturating_add(reset).get(), Ordering::Relaxed);
        }
        decision
    }
}

/// Charges the table of this process.
fn reserve(
    memory: &Arc<MemoryLimiter>,
    key: &str,
    tier: usize,
    demand: Demand,
    slots: PermitMode,
) -> Reservation {
    let hold = if slots == PermitMode::Acquire { PermitHold::Permit } else { PermitHold::Nothing };
    let tier = if tier < memory.key_table().tiers() { tier } else { 0 };
    let backend = LocalBackend::Key { memory: memory.clone(), owner: memory.fingerprint(key), tier };
    Reservation::take(backend, demand, hold)
}

/// How long a grant of these quotas is dual-counted at most, unless it is an overdraft.
fn longest_retention(quotas: &[Quota]) -> Micros {
    let retention = |quota: &Quota| match quota.rate() {
        // The periods in which a full burst drains or a window ends.
        Some(rate) => {
            let periods = quota.limit().div_ceil(rate.amount().max(1)).saturating_add(1);
            Micros::new(rate.period().get().saturating_mul(periods))
        }
        None => RETENTION_WITHOUT_EXPIRY,
    };
    quotas.iter().map(retention).max().unwrap_or(Micros::ZERO)
}

/// The latest time at which a grant of `old` expires after a change to these quotas. Slots and totals that are replaced by
/// rates are no longer counted.
fn latest_deadline(old: &MemoryLimiter, quotas: &[Quota]) -> u64 {
    let has_rates = |quotas: &[Quota]| quotas.iter().all(|quota| quota.rate().is_some());
    match has_rates(quotas) && !has_rates(&old.quotas()) {
        true => old.clock().now().saturating_add(longest_retention(quotas)).get(),
        false => u64::MAX,
    }
}

fn min_limit(quotas: &[Quota]) -> u64 {
    quotas.iter().map(Quota::limit).min().unwrap_or(0)
}

/// The share of one process.
fn split_quotas(nodes: u64, quotas: &[Quota]) -> Vec<Quota> {
    quotas.iter().map(|quota| split_quota(nodes, quota)).collect()
}

fn split_quota(nodes: u64, quota: &Quota) -> Quota {
    strip_lease(quota.per_node(nodes))
}

fn build(
    memory: LimiterBuilder,
    shares: &[Quota],
    selection: QuotaSelection,
) -> Result<MemoryLimiter, BuildError> {
    memory.build_memory(shares, selection)
}

/// Builds a limiter that continues with the counts of another.
fn build_successor(
    memory: &LimiterBuilder,
    old: &MemoryLimiter,
    shares: &[Quota],
    selection: QuotaSelection,
    how: CarryOver,
) -> Result<Arc<MemoryLimiter>, BuildError> {
    // Slots in use are released to the old limiter, so copies of them would stay in use here forever.
    if how == CarryOver::Reset || shares.iter().chain(&old.quotas()).any(Quota::is_concurrency) {
        return build(memory.clone(), shares, selection).map(Arc::new);
    }
    let new = build(memory.clone().memory_predecessor(old), shares, selection)?;
    new.take_over(old);
    Ok(Arc::new(new))
}

/// In this process the holder always releases its slot, so no lease is needed.
fn strip_lease(quota: Quota) -> Quota {
    match quota.kind() {
        AlgorithmKind::Concurrency(_) => Concurrency::new(quota.limit())
            .map_or(quota, |concurrency| AlgorithmKind::Concurrency(concurrency).into()),
        _ => quota,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "this is how a test fails")]
mod tests {
    use super::*;
    use crate::{Clock, Limiter, clock::ManualClock};
    use std::time::Duration;

    fn build_fallback(quota: &str) -> (Fallback, ManualClock) {
        let (clock, manual_clock) = Clock::manual();
        let memory = Limiter::builder().clock(clock);
        let fallback = Fallback::new(FailureMode::default(), memory, &[parse(quota)], QuotaSelection::All);
        (fallback.unwrap(), manual_clock)
    }

    fn parse(quota: &str) -> Quota {
        quota.parse().unwrap()
    }

    fn grant_in_outage(fallback: &Fallback) {
        let error = StoreError::Unavailable("down".to_owned());
        assert!(fallback.decide(&error, "a", 0, Demand::new(1)).is_allowed());
    }

    const HOUR: Duration = Duration::from_secs(3_600);

    #[test]
    fn total_is_dual_counted_for_an_hour_after_an_outage() {
        let (fallback, clock) = build_fallback("1 total");
        grant_in_outage(&fallback);
        let is_denied = || fallback.reserve_local("a", 0, Demand::new(1), PermitMode::Peek).is_err();
        assert!(is_denied());
        clock.advance(HOUR - Duration::from_micros(1));
        assert!(is_denied());
        clock.advance(Duration::from_micros(1));
        assert!(!is_denied() && !fallback.is_dual_counting());
    }

    /// Whichever quota is the most restrictive: a day of a rate is longer than the hour of a total, and that longer than a second.
    #[test]
    fn all_quotas_of_a_rule_are_dual_counted_until_they_expire() {
        for (quotas, hours, later) in [
            (["9 total", "2/d"], 23, 48),
            (["2 total", "9/d"], 23, 48),
            (["9 total", "2/s"], 0, 1),
            (["2 total", "9/s"], 0, 1),
            (["2/s", "9/d"], 23, 48),
        ] {
            let (clock, manual_clock) = Clock::manual();
            let memory = Limiter::builder().clock(clock);
            let parsed = quotas.map(parse);
            let fallback =
                Fallback::new(FailureMode::default(), memory, &parsed, QuotaSelection::All).unwrap();
            grant_in_outage(&fallback);
            manual_clock.advance(hours * HOUR + HOUR / 2);
            assert!(fallback.is_dual_counting(), "{quotas:?}");
            manual_clock.advance((later - hours) * HOUR);
            assert!(!fallback.is_dual_counting(), "{quotas:?}");
        }
    }

    #[test]
    fn change_from_a_total_to_a_rate_ends_dual_counting_with_the_rate() {
        for reload in ["change", "take over"] {
            let (fallback, _clock) = build_fallback("5 total");
            grant_in_outage(&fallback);
            let fallback = match reload {
                "change" => {
                    fallback.change_all(&[parse("2/s")], CarryOver::Keep).unwrap();
                    fallback
                }
                _ => {
                    let (next, _) = build_fallback("2/s");
                    next.take_over(&fallback);
                    next
                }
            };
            // The deadline of the total would be in an hour.
            if let Fallback::Local { dual_count_until, .. } = &fallback {
                let until = Micros::new(dual_count_until.load(Ordering::Relaxed));
                assert_eq!(until, Micros::from_secs(2), "{reload}");
            }
        }
    }
}
