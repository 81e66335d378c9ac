//! What is decided without the store.
//!
//! A decision that misses its deadline is refused, unless the limiter is open in an outage: the store may have decided
//! otherwise, and it is not unavailable because of one late answer. While it is unavailable the declared mode decides.
//!
//! Where each process counts up to the whole quota ([`FailureMode::LocalCharge`] with one node, the default), it also counts what the
//! store grants it. So an outage grants a key no more than this process has not granted it already, and after an outage
//! both must grant, until what was granted without the store is forgotten: no process ever exceeds the bound, and all of
//! them together no more than the bound times their number.

use super::{
    BuildError, LimiterBuilder, LocalBackend, MemoryLimiter, OutageBound, Reservation,
    reservation::LocalCharge,
};
use crate::{
    memory::SlotHold,
    store::{QuotaSelection, SlotMode, StoreError},
};
use arc_swap::ArcSwap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{
    AlgorithmKind, CarryOver, Decision, Demand, Effect, Micros, Quota, algorithm::Concurrency,
};

/// What is decided while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureMode {
    /// Allow everything, a decision that misses its deadline included.
    Open,
    /// Deny everything.
    Closed,
    /// Count in this process, with its share of the quota. With one node that is the whole quota, less what the store has
    /// granted to this process. With several, a key starts anew when the outage does, so it gets at most one more burst of
    /// that share.
    Local {
        /// How many processes share the quota.
        nodes: u64,
    },
}

impl Default for FailureMode {
    fn default() -> Self {
        Self::Local { nodes: 1 }
    }
}

/// When to ask again after a decision that the store did not make.
const RETRY_AFTER: Micros = Micros::from_secs(1);
/// How long slots are counted here and in the store after an outage: they have no time at which they are forgotten.
const SLOT_RETENTION: Micros = Micros::from_secs(3_600);

/// Decides without the store.
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
        /// By when all that was granted without the store is forgotten; zero if nothing was.
        dual_count_until: AtomicU64,
    },
}

/// What this process has counted beside the store, before it was asked.
pub(super) enum LocalCount {
    /// Nothing yet.
    Uncounted,
    /// What is kept if the store grants it, too.
    Counted(Box<Reservation>),
}

/// Where this process counts what the store grants one key, if it does.
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
    /// `memory` says how large the table of this process is.
    pub(super) fn new(
        mode: FailureMode,
        memory: LimiterBuilder,
        quotas: &[Quota],
        choice: QuotaSelection,
    ) -> Result<Self, BuildError> {
        Ok(match mode {
            FailureMode::Open => Self::Open,
            FailureMode::Closed => Self::Closed { limit: min_limit(quotas) },
            FailureMode::Local { nodes } => {
                let limiter = build(memory.clone(), &split_quotas(nodes, quotas), choice)?;
                let (limiter, both_until) = (ArcSwap::from_pointee(limiter), AtomicU64::new(0));
                Self::Local {
                    nodes,
                    selection: choice,
                    memory: Box::new(memory),
                    limiter,
                    dual_count_until: both_until,
                }
            }
        })
    }

    /// What is admitted of a quota at most without the store.
    pub(super) fn bound(&self, quota: &Quota) -> OutageBound {
        match self {
            Self::Open => OutageBound::Everything,
            Self::Closed { .. } => OutageBound::Nothing,
            Self::Local { nodes: 1, .. } => OutageBound::WholePerProcess,
            Self::Local { nodes, .. } => OutageBound::SharePerProcess(split_quota(*nodes, quota).bound()),
        }
    }

    /// Counts by other quotas from now on. What was counted carries over as `how` says.
    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        if let Self::Local { nodes, selection: choice, memory, limiter, .. } = self {
            let (old, shares) = (limiter.load_full(), split_quotas(*nodes, quotas));
            if old.change_all(&shares, how).is_err() {
                limiter.store(build_successor(memory, &old, &shares, *choice, how)?);
            }
        }
        Ok(())
    }

    /// Goes on with what another one has counted, whose place this one takes.
    pub(super) fn take_over(&self, old: &Self) {
        if let Self::Local { selection: choice, memory, limiter, dual_count_until: both_until, .. } = self
            && let Self::Local { limiter: old, dual_count_until: until, .. } = old
        {
            let (old, new) = (old.load_full(), limiter.load_full());
            let quotas = new.quotas();
            // Whoever holds a slot gives it back to the limiter that it is of; all else may have another table.
            let has_same_table =
                old.size().capacity == new.size().capacity && old.overflow() == new.overflow();
            let stays = has_same_table || quotas.iter().any(is_concurrency);
            if stays && old.change_all(&quotas, CarryOver::Keep).is_ok() {
                limiter.store(old);
            } else if let Ok(new) = build_successor(memory, &old, &quotas, *choice, CarryOver::Keep) {
                limiter.store(new);
            }
            both_until.fetch_max(until.load(Ordering::Relaxed), Ordering::Relaxed);
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
        slots: SlotMode,
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

    /// What this process has granted a key so far, where that matters before the store is asked; the denial if it is
    /// too much.
    pub(super) fn reserve_local(
        &self,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: SlotMode,
    ) -> Result<LocalCount, Box<Reservation>> {
        let Some(limiter) = self.local_limiter().filter(|_| self.is_dual_counting()) else {
            return Ok(LocalCount::Uncounted);
        };
        if demand.effect == Effect::Probe {
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

    /// Counts what the store has granted; what is to be undone with it.
    pub(super) fn charge_local(
        &self,
        own: LocalCount,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: SlotMode,
    ) -> Option<LocalCharge> {
        if demand.effect == Effect::Probe || demand.cost == 0 {
            return None;
        }
        let taken = match own {
            LocalCount::Counted(taken) => *taken,
            LocalCount::Uncounted => {
                let forced = Demand::forced(demand.cost);
                reserve(&self.local_limiter()?, key, tier, forced, slots)
            }
        };
        taken.into_local()
    }

    /// Where this process counts what the store grants a key.
    pub(super) fn fallback_key(&self, key: &str) -> FallbackKey {
        FallbackKey { limiter: self.local_limiter(), key: key.to_owned() }
    }

    /// Whether this process must grant what the store grants: something was granted without the store, and is not
    /// forgotten yet.
    pub(super) fn is_dual_counting(&self) -> bool {
        match self {
            Self::Local { dual_count_until: both_until, limiter, .. } => {
                let until = both_until.load(Ordering::Relaxed);
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

    /// Who decides after this error: the limiter of this process, or nobody.
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

    /// Remembers for how long it matters what was granted without the store.
    fn extend_dual_counting(&self, limiter: &MemoryLimiter, decision: Decision) -> Decision {
        if let Self::Local { nodes: 1, dual_count_until: both_until, .. } = self
            && decision.is_granted()
        {
            let reset = match decision.reset_after() {
                Micros::MAX => SLOT_RETENTION,
                reset => reset,
            };
            both_until.fetch_max(limiter.clock().now().plus(reset).get(), Ordering::Relaxed);
        }
        decision
    }
}

/// Takes something in the table of this process.
fn reserve(
    memory: &Arc<MemoryLimiter>,
    key: &str,
    tier: usize,
    demand: Demand,
    slots: SlotMode,
) -> Reservation {
    let hold = if slots == SlotMode::Acquire { SlotHold::Permit } else { SlotHold::Nothing };
    let tier = if tier < memory.tiers() { tier } else { 0 };
    let place = LocalBackend::Key { memory: memory.clone(), owner: memory.fingerprint(key), tier };
    Reservation::take(place, demand, hold)
}

fn min_limit(quotas: &[Quota]) -> u64 {
    quotas.iter().map(Quota::limit).min().unwrap_or(0)
}

/// What one of some processes may grant.
fn split_quotas(nodes: u64, quotas: &[Quota]) -> Vec<Quota> {
    quotas.iter().map(|quota| split_quota(nodes, quota)).collect()
}

fn split_quota(nodes: u64, quota: &Quota) -> Quota {
    strip_lease(quota.per_node(nodes))
}

fn build(
    memory: LimiterBuilder,
    shares: &[Quota],
    choice: QuotaSelection,
) -> Result<MemoryLimiter, BuildError> {
    memory.build_memory(shares, choice)
}

fn is_concurrency(quota: &Quota) -> bool {
    quota.rate().is_none()
}

/// A limiter that goes on with what another one has counted.
fn build_successor(
    memory: &LimiterBuilder,
    old: &MemoryLimiter,
    shares: &[Quota],
    choice: QuotaSelection,
    how: CarryOver,
) -> Result<Arc<MemoryLimiter>, BuildError> {
    // Slots that are held are given back to the old one, and would be held here for ever.
    if how == CarryOver::Reset || shares.iter().chain(&old.quotas()).any(is_concurrency) {
        return build(memory.clone(), shares, choice).map(Arc::new);
    }
    let new = build(memory.clone().memory_predecessor(old), shares, choice)?;
    new.take_over(old);
    Ok(Arc::new(new))
}

/// In this process a slot is given back by whoever holds it, however long that takes.
fn strip_lease(quota: Quota) -> Quota {
    match quota.kind() {
        AlgorithmKind::Concurrency(_) => {
            Concurrency::new(quota.limit()).map_or(quota, |it| AlgorithmKind::Concurrency(it).into())
        }
        _ => quota,
    }
}
