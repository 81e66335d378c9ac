//! The backend in a store, with its fallback and its prefetched tokens.

use super::{
    BuildError, FIRST_TIER, FleetBound, LimiterBuilder, OverrideChange, Reservation,
    fallback::{Fallback, LocalCount},
    overrides::{OverrideTable, check_override, not_overridable},
    prefetch::{PrefetchCache, PrefetchedTokens, RefillNeed},
    queue::StoreQueues,
};
use crate::{
    background,
    clock::Clock,
    most_restrictive::MostRestrictive,
    store::{
        KeyRef, PermitMode, QuotaSelection, Store, StoreCheck, StoreDecision, StoreError, StoreLimit,
        StoreReply, StoreRequest,
    },
    wait::WaitPolicy,
};
use arc_swap::ArcSwap;
use std::{
    hash::BuildHasher as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota, SettingError};

/// A limiter in a store.
pub(super) struct RemoteLimiter {
    store: Arc<dyn Store>,
    limit: ArcSwap<StoreLimit>,
    pub(super) fallback: Arc<Fallback>,
    prefetch: Option<Arc<PrefetchCache>>,
    pub(super) queues: Arc<StoreQueues>,
    /// The clock of the waits in this process.
    clock: Clock,
    /// The number of decisions made without the store.
    degraded_count: AtomicU64,
    /// `None` if keys have no overrides.
    overrides: Option<Box<RemoteOverrides>>,
}

/// The overrides of a limiter in a store.
struct RemoteOverrides {
    table: OverrideTable,
    hasher: foldhash::quality::RandomState,
    /// The declared quotas, followed by those of overrides, as tiers.
    limit: ArcSwap<StoreLimit>,
}

impl RemoteLimiter {
    pub(super) fn build(
        builder: LimiterBuilder,
        store: Arc<dyn Store>,
        quotas: &[Quota],
        selection: QuotaSelection,
    ) -> Result<Self, BuildError> {
        let settings = builder.remote_settings().clone();
        if settings.name.is_empty() {
            return Err(BuildError::NoName);
        }
        let quotas: Vec<_> = quotas.iter().map(|quota| store.effective_quota(*quota)).collect();
        let clock = builder.configured_clock().unwrap_or_else(Clock::tokio);
        let queues = Arc::new(StoreQueues::new(builder.wait_queues(WaitPolicy::Queue), clock.clone()));
        let has_overrides = builder.has_overrides(&quotas, selection);
        let fallback =
            Arc::new(Fallback::new(settings.failure_mode, builder.for_fallback(), &quotas, selection)?);
        store.add_failure_mode(settings.failure_mode);
        let limit_at_once = quotas.iter().map(Quota::limit).min().unwrap_or(0);
        // Permits are not tokens, and what is left of prefetched tokens of a total would be lost permanently.
        let has_rates = quotas.iter().all(|quota| quota.rate().is_some());
        let prefetch = settings.prefetch.filter(|_| has_rates && selection == QuotaSelection::All);
        let prefetch = prefetch.map(|prefetch| Arc::new(PrefetchCache::new(prefetch, limit_at_once)));
        let limit = |quotas, selection| {
            ArcSwap::from_pointee(StoreLimit::new(&settings.name, quotas, selection, settings.carry_over))
        };
        let overrides = has_overrides.then(|| {
            let limit = limit(quotas.clone(), QuotaSelection::Tier);
            Box::new(RemoteOverrides {
                table: OverrideTable::new(),
                hasher: foldhash::quality::RandomState::default(),
                limit,
            })
        });
        let limit = limit(quotas, selection);
        let degraded_count = AtomicU64::new(0);
        Ok(Self { store, limit, fallback, prefetch, queues, clock, degraded_count, overrides })
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Takes `cost` now, or denies; from prefetched tokens if there are any.
    #[inline]
    pub(super) async fn check(self: &Arc<Self>, key: &str, cost: u64) -> Decision {
        match self.spend(key, cost) {
            Some(decision) => decision,
            None => self.check_store(key, cost).await,
        }
    }

    /// The prefetched tokens, if a check of this cost can use them.
    #[inline]
    fn prefetch_for(&self, cost: u64) -> Option<&Arc<PrefetchCache>> {
        self.prefetch.as_ref().filter(|_| cost > 0 && !self.fallback.is_dual_counting())
    }

    /// Takes `cost` from prefetched tokens. Not async, because most checks of a hot key end here.
    #[inline]
    pub(super) fn spend(self: &Arc<Self>, key: &str, cost: u64) -> Option<Decision> {
        let prefetch = self.prefetch_for(cost)?;
        let (decision, need) = prefetch.spend(key, cost)?;
        if let RefillNeed::Refill(balance) = need {
            self.refill(key, prefetch, balance);
        }
        Some(decision)
    }

    /// Checks in the store what could not be [spent](Self::spend).
    pub(super) async fn check_store(self: &Arc<Self>, key: &str, cost: u64) -> Decision {
        match self.prefetch_for(cost) {
            // Boxed, so that the rare case does not enlarge every future.
            Some(prefetch) => Box::pin(self.check_and_prefetch(prefetch, key, cost)).await,
            None => self.decide(key, FIRST_TIER, Demand::new(cost)).await,
        }
    }

    /// Decides one check in the store.
    pub(super) async fn decide(&self, key: &str, tier: usize, demand: Demand) -> Decision {
        let local = match self.fallback.reserve_local(key, tier, demand, PermitMode::Peek) {
            Ok(local) => local,
            Err(denied) => return self.record_degraded(*denied.decision()),
        };
        let check = self.store_check(key, tier, demand, PermitMode::Peek);
        match self.store.execute(StoreRequest::Decide(vec![check])).await.and_then(single_decision) {
            Ok(store_decision) => {
                let decision = merge_decisions(&store_decision, tier);
                if decision.is_granted() {
                    self.count_granted(local, key, tier, demand);
                }
                decision
            }
            Err(error) => {
                drop(local);
                self.record_degraded(self.fallback.decide(&error, key, tier, demand))
            }
        }
    }

    pub(super) async fn take_up_to(&self, key: &str, tier: usize, max: u64) -> (u64, Decision) {
        // Two backends cannot agree on an available amount: this process checks one token and then counts what the store grants.
        let local = match self.fallback.reserve_local(key, tier, Demand::new(1), PermitMode::Peek) {
            Ok(local) => local,
            Err(denied) => return (0, self.record_degraded(*denied.decision())),
        };
        let check =
            StoreCheck { receipt: true, ..self.store_check(key, tier, Demand::new(max), PermitMode::Peek) };
        match self.store.execute(StoreRequest::TakeUpTo(check)).await.and_then(single_decision) {
            Ok(store_decision) => {
                let decision = merge_decisions(&store_decision, tier);
                let taken =
                    store_decision.results.iter().map(|result| result.receipt.cost).max().unwrap_or(0);
                let taken = if decision.is_granted() { taken } else { 0 };
                drop(local);
                if taken > 0 {
                    self.count_granted(LocalCount::Uncounted, key, tier, Demand::new(taken));
                }
                (taken, decision)
            }
            Err(error) => {
                drop(local);
                self.record_degraded(self.fallback.take_up_to(&error, key, tier, max))
            }
        }
    }

    /// Decides one call in the store, and prefetches tokens if the key is busy enough.
    async fn check_and_prefetch(
        self: &Arc<Self>,
        prefetch: &Arc<PrefetchCache>,
        key: &str,
        cost: u64,
    ) -> Decision {
        let decision = self.decide(key, FIRST_TIER, Demand::new(cost)).await;
        if decision.is_degraded() {
            return decision;
        }
        let (owner, balance) = prefetch.find(key);
        let Some(balance) = balance else {
            prefetch.record_request(owner, key);
            return decision;
        };
        let now = prefetch.now();
        if decision.is_granted() {
            balance.update_remaining(now, &decision);
            if balance.start_refill() {
                self.refill(key, prefetch, balance);
            }
        } else if cost == 1 {
            balance.update_remaining(now, &decision);
        }
        decision
    }

    /// Prefetches tokens in the background. The caller has called `start_refill`.
    fn refill(&self, key: &str, prefetch: &Arc<PrefetchCache>, balance: Arc<PrefetchedTokens>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return balance.finish_refill() };
        let requested_at = prefetch.now();
        let Some(amount) = prefetch.refill_amount(&balance, requested_at) else {
            // Too few tokens remain to take some from other processes.
            if !balance.should_bypass(requested_at) {
                balance.clear_remaining();
            }
            return balance.finish_refill();
        };
        let check = StoreCheck {
            receipt: true,
            ..self.store_check(key, FIRST_TIER, Demand::new(amount), PermitMode::Peek)
        };
        let (store, prefetch, fallback_key) =
            (self.store.clone(), prefetch.clone(), self.fallback.fallback_key(key));
        drop(runtime.spawn(async move {
            let store_decision = store.execute(StoreRequest::TakeUpTo(check)).await.and_then(single_decision);
            if let Ok(store_decision) = store_decision {
                let decision = merge_decisions(&store_decision, FIRST_TIER);
                let taken =
                    store_decision.results.iter().map(|result| result.receipt.cost).max().unwrap_or(0);
                fallback_key.count(taken);
                let now = prefetch.now();
                balance.update_remaining(now, &decision);
                if decision.is_granted()
                    && let Some(slot) = balance.insert(now, requested_at, prefetch.lifetime(), taken)
                {
                    balance.set_charge(slot, store_decision.charge());
                }
            }
            balance.finish_refill();
        }));
    }

    /// Reserves in the store; the charge can be refunded.
    pub(super) async fn take(
        self: &Arc<Self>,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: PermitMode,
    ) -> Reservation {
        let local = match self.fallback.reserve_local(key, tier, demand, slots) {
            Ok(local) => local,
            Err(denied) => return self.record_degraded(*denied),
        };
        let check = StoreCheck { receipt: true, ..self.store_check(key, tier, demand, slots) };
        let (remote, key_ref) = (self.clone(), check.key_ref.clone());
        let taken = background::run_uncancelled(async move {
            let store_decision =
                remote.store.execute(StoreRequest::Decide(vec![check])).await.and_then(single_decision)?;
            let local = match merge_decisions(&store_decision, key_ref.tier).is_granted() {
                true => remote.fallback.charge_local(local, &key_ref.key, key_ref.tier, demand, slots),
                false => None,
            };
            Ok::<_, StoreError>(Reservation::from_store(&remote, key_ref, demand, &store_decision, local))
        });
        let error = match taken.await {
            Some(Ok(reservation)) => return reservation,
            Some(Err(error)) => error,
            None => StoreError::Unavailable("call cancelled".to_owned()),
        };
        self.record_degraded(self.fallback.take(&error, key, tier, demand, slots))
    }

    pub(super) async fn reset(&self, key: &str) -> Result<(), StoreError> {
        self.prefetch.iter().for_each(|prefetch| prefetch.remove(key));
        self.fallback.reset(key);
        self.store.execute(StoreRequest::Reset(self.key_ref(key, FIRST_TIER))).await.map(drop)
    }

    /// Waits by the clock of this limiter.
    pub(super) async fn sleep(&self, wait: Micros) {
        self.clock.wait_until(self.clock.now().saturating_add(wait)).await;
    }

    /// Counts a decision made without the store.
    pub(super) fn record_degraded<T>(&self, decision: T) -> T {
        self.degraded_count.fetch_add(1, Ordering::Relaxed);
        decision
    }

    /// Counts in this process what the store has granted.
    pub(super) fn count_granted(&self, local: LocalCount, key: &str, tier: usize, demand: Demand) {
        if let Some(local) = self.fallback.charge_local(local, key, tier, demand, PermitMode::Peek) {
            local.keep();
        }
    }

    fn key_ref(&self, key: &str, tier: usize) -> KeyRef {
        let limit = self.limit.load_full();
        let limit = match &self.overrides {
            Some(overrides) if tier >= limit.quotas().len() => overrides.limit.load_full(),
            _ => limit,
        };
        KeyRef { limit, key: key.to_owned(), tier }
    }

    /// The tier of a key: that of its override, or the requested one; the first if there is no such tier.
    #[inline]
    pub(super) fn tier_for(&self, key: &str, requested: usize) -> usize {
        if let Some(overrides) = self.overrides.as_ref().filter(|overrides| !overrides.table.is_empty())
            && let Some(slot) = overrides.table.find(overrides.hasher.hash_one(key), &self.clock)
        {
            return self.limit.load().quotas().len() + slot;
        }
        if requested == FIRST_TIER || requested < self.tiers() { requested } else { FIRST_TIER }
    }

    pub(super) fn is_overridable(&self) -> bool {
        self.overrides.is_some()
    }

    pub(super) fn override_id(&self, key: &str) -> u64 {
        self.overrides.as_ref().map_or(0, |overrides| overrides.hasher.hash_one(key))
    }

    pub(super) fn override_quotas(&self) -> Vec<Quota> {
        self.overrides.as_ref().map(|overrides| overrides.table.quotas()).unwrap_or_default()
    }

    pub(super) fn check_override(&self, quota: &Quota) -> Result<(), SettingError> {
        let overrides = self.overrides.as_ref().ok_or_else(not_overridable)?;
        overrides.table.check(&self.store.effective_quota(*quota), &self.quotas())
    }

    pub(super) fn apply_overrides(&self, changes: &[OverrideChange]) -> Vec<(usize, SettingError)> {
        let Some(overrides) = &self.overrides else {
            return (0..changes.len()).map(|index| (index, not_overridable())).collect();
        };
        let declared = self.quotas();
        let effective = |(owner, change): &OverrideChange| {
            let adapt = |it: super::QuotaOverride| super::QuotaOverride {
                quota: self.store.effective_quota(it.quota),
                ..it
            };
            (*owner, change.map(adapt))
        };
        let changes: Vec<OverrideChange> = changes.iter().map(effective).collect();
        overrides.table.apply(
            &changes,
            |quota| check_override(quota, &declared),
            |quotas| self.set_override_quotas(overrides, quotas),
        )
    }

    fn set_override_quotas(&self, overrides: &RemoteOverrides, quotas: &[Quota]) -> Result<(), SettingError> {
        self.fallback.set_override_quotas(quotas)?;
        let base = self.limit.load();
        let all = base.quotas().iter().chain(quotas).copied().collect();
        let limit = StoreLimit::new(base.name(), all, QuotaSelection::Tier, base.carry_over());
        overrides.limit.store(Arc::new(limit));
        Ok(())
    }

    pub(super) fn store_check(
        &self,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: PermitMode,
    ) -> StoreCheck {
        StoreCheck { key_ref: self.key_ref(key, tier), demand, permit_mode: slots, receipt: false }
    }

    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        self.can_change_all(quotas)?;
        let old = self.limit.load_full();
        let quotas: Vec<_> = quotas.iter().map(|quota| self.store.effective_quota(*quota)).collect();
        let change = || {
            self.fallback.change_all(&quotas, how)?;
            self.limit.store(Arc::new(StoreLimit::new(old.name(), quotas, old.selection(), how)));
            Ok::<(), BuildError>(())
        };
        match &self.overrides {
            None => change(),
            Some(overrides) => overrides.table.exclusively(|override_quotas| {
                change()?;
                self.set_override_quotas(overrides, override_quotas)
                    .map_err(|_| BuildError::incompatible_quota(old.quotas(), override_quotas))
            }),
        }
    }

    pub(super) fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        let old = self.limit.load();
        match quotas.len() == old.quotas().len() {
            true => Ok(()),
            false => Err(BuildError::incompatible_quota(old.quotas(), quotas)),
        }
    }

    pub(super) fn take_over(&self, old: &Self) {
        self.fallback.take_over(&old.fallback);
    }

    pub(super) fn quotas(&self) -> Vec<Quota> {
        self.limit.load().quotas().to_vec()
    }

    pub(super) fn tiers(&self) -> usize {
        let limit = self.limit.load();
        match limit.selection() {
            QuotaSelection::All => 1,
            QuotaSelection::Tier => limit.quotas().len(),
        }
    }

    pub(super) fn bounds(&self) -> Vec<FleetBound> {
        let prefetch_ttl =
            self.prefetch.as_ref().map_or(Micros::ZERO, |prefetch| prefetch.settings().time_to_live());
        let bound = |quota: &Quota| FleetBound {
            normal: quota.bound().with_prefetch(prefetch_ttl),
            during_outage: self.fallback.bound(quota),
        };
        self.quotas().iter().map(bound).collect()
    }

    pub(super) fn max_stranded_tokens(&self) -> u64 {
        self.prefetch.as_ref().map_or(0, |prefetch| prefetch.max_stranded_tokens())
    }

    pub(super) fn degraded_count(&self) -> u64 {
        self.degraded_count.load(Ordering::Relaxed)
    }
}

/// Refunds the prefetched tokens that were not spent.
impl Drop for RemoteLimiter {
    fn drop(&mut self) {
        for (key, charge, cost) in self.prefetch.iter().flat_map(|prefetch| prefetch.drain()) {
            let refund = self.store.execute(StoreRequest::Refund {
                key_ref: self.key_ref(&key, FIRST_TIER),
                charge,
                cost,
            });
            drop(background::spawn_in_current(async move {
                let _ = refund.await;
            }));
        }
    }
}

/// The decision of a request with one check.
pub(super) fn single_decision(reply: StoreReply) -> Result<StoreDecision, StoreError> {
    match reply {
        StoreReply::Decided(decisions) if decisions.len() == 1 => {
            decisions.into_iter().next().ok_or_else(|| StoreError::ErrorReply(UNEXPECTED_REPLY.to_owned()))
        }
        _ => Err(StoreError::ErrorReply(UNEXPECTED_REPLY.to_owned())),
    }
}

pub(super) const UNEXPECTED_REPLY: &str = "unexpected reply";

/// One decision of all quotas that applied, or of the tier that did.
pub(super) fn merge_decisions(store_decision: &StoreDecision, tier: usize) -> Decision {
    let mut combined = MostRestrictive::default();
    store_decision.results.iter().for_each(|result| combined.add(result.decision));
    match tier {
        FIRST_TIER => combined.finish(),
        _ => combined.finish().with_quota(tier),
    }
}
