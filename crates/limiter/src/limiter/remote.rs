//! The backend in a store: what is asked of the store, and who answers when it does not.

use super::{
    BuildError, FIRST_TIER, FleetBound, LimiterBuilder, Reservation,
    fallback::{Fallback, LocalCount},
    prefetch::{PrefetchCache, PrefetchedTokens, RefillNeed},
    queue::StoreQueues,
};
use crate::{
    background,
    clock::Clock,
    most_restrictive::MostRestrictive,
    store::{
        KeyRef, QuotaSelection, SlotMode, Store, StoreCheck, StoreDecision, StoreError, StoreLimit,
        StoreReply, StoreRequest,
    },
    wait::WaitPolicy,
};
use arc_swap::ArcSwap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota};

/// Counts in a store.
pub(super) struct RemoteLimiter {
    store: Arc<dyn Store>,
    limit: ArcSwap<StoreLimit>,
    pub(super) fallback: Arc<Fallback>,
    prefetch: Option<Arc<PrefetchCache>>,
    pub(super) queues: Arc<StoreQueues>,
    /// By which this process waits for what the store has promised it.
    clock: Clock,
    /// Decisions that were made without the store.
    degraded_count: AtomicU64,
}

impl RemoteLimiter {
    pub(super) fn build(
        builder: LimiterBuilder,
        store: Arc<dyn Store>,
        quotas: &[Quota],
        choice: QuotaSelection,
    ) -> Result<Self, BuildError> {
        let shared = builder.remote_settings().clone();
        if shared.name.is_empty() {
            return Err(BuildError::NoName);
        }
        let quotas: Vec<_> = quotas.iter().map(|quota| store.effective_quota(*quota)).collect();
        let clock = builder.configured_clock().unwrap_or_else(Clock::tokio);
        let queue = Arc::new(StoreQueues::new(builder.wait_queues(WaitPolicy::Queue), clock.clone()));
        let fallback = Arc::new(Fallback::new(shared.failure_mode, builder.for_fallback(), &quotas, choice)?);
        store.add_failure_mode(shared.failure_mode);
        let limit_at_once = quotas.iter().map(Quota::limit).min().unwrap_or(0);
        let counts_permits = quotas.iter().any(|quota| quota.rate().is_none());
        let ahead = shared.prefetch.filter(|_| !counts_permits && choice == QuotaSelection::All);
        let leases = ahead.map(|ahead| Arc::new(PrefetchCache::new(ahead, limit_at_once)));
        let limit = ArcSwap::from_pointee(StoreLimit::new(&shared.name, quotas, choice, shared.carry_over));
        Ok(Self {
            store,
            limit,
            fallback,
            prefetch: leases,
            queues: queue,
            clock,
            degraded_count: AtomicU64::new(0),
        })
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Takes `cost` now or not at all, from what was taken ahead where there is any.
    #[inline]
    pub(super) async fn check(self: &Arc<Self>, key: &str, cost: u64) -> Decision {
        match self.spend(key, cost) {
            Some(decision) => decision,
            None => self.check_store(key, cost).await,
        }
    }

    /// The tokens that are taken ahead, if a check of this cost may use them.
    #[inline]
    fn prefetch_for(&self, cost: u64) -> Option<&Arc<PrefetchCache>> {
        self.prefetch.as_ref().filter(|_| cost > 0 && !self.fallback.is_dual_counting())
    }

    /// Takes `cost` from what was taken ahead. No future, because most checks of a hot key end here.
    #[inline]
    pub(super) fn spend(self: &Arc<Self>, key: &str, cost: u64) -> Option<Decision> {
        let leases = self.prefetch_for(cost)?;
        let (decision, need) = leases.spend(key, cost)?;
        if let RefillNeed::Refill(balance) = need {
            self.refill(key, leases, balance);
        }
        Some(decision)
    }

    /// Asks the store for what could not be [spent](Self::spend).
    pub(super) async fn check_store(self: &Arc<Self>, key: &str, cost: u64) -> Decision {
        match self.prefetch_for(cost) {
            // Rare, and a future has room for everything in it.
            Some(leases) => Box::pin(self.check_and_prefetch(leases, key, cost)).await,
            None => self.decide(key, FIRST_TIER, Demand::new(cost)).await,
        }
    }

    /// Asks the store about one check.
    pub(super) async fn decide(&self, key: &str, tier: usize, demand: Demand) -> Decision {
        let own = match self.fallback.reserve_local(key, tier, demand, SlotMode::Peek) {
            Ok(own) => own,
            Err(denied) => return self.record_degraded(*denied.decision()),
        };
        let ask = self.store_check(key, tier, demand, SlotMode::Peek);
        match self.store.execute(StoreRequest::Decide(vec![ask])).await.and_then(single_decision) {
            Ok(answer) => {
                let decision = merge_decisions(&answer, tier);
                if decision.is_granted() {
                    self.count_granted(own, key, tier, demand);
                }
                decision
            }
            Err(error) => {
                drop(own);
                self.record_degraded(self.fallback.decide(&error, key, tier, demand))
            }
        }
    }

    pub(super) async fn take_up_to(&self, key: &str, tier: usize, max: u64) -> (u64, Decision) {
        // As much as there is cannot be asked of both: this process is asked for one, and counts the rest.
        let own = match self.fallback.reserve_local(key, tier, Demand::new(1), SlotMode::Peek) {
            Ok(own) => own,
            Err(denied) => return (0, self.record_degraded(*denied.decision())),
        };
        let ask =
            StoreCheck { receipt: true, ..self.store_check(key, tier, Demand::new(max), SlotMode::Peek) };
        match self.store.execute(StoreRequest::TakeUpTo(ask)).await.and_then(single_decision) {
            Ok(answer) => {
                let decision = merge_decisions(&answer, tier);
                let taken = answer.steps.iter().map(|step| step.receipt.cost).max().unwrap_or(0);
                let taken = if decision.is_granted() { taken } else { 0 };
                drop(own);
                if taken > 0 {
                    self.count_granted(LocalCount::Uncounted, key, tier, Demand::new(taken));
                }
                (taken, decision)
            }
            Err(error) => {
                drop(own);
                self.record_degraded(self.fallback.take_up_to(&error, key, tier, max))
            }
        }
    }

    /// Asks the store about one call, and takes tokens ahead if the key is worth it.
    async fn check_and_prefetch(
        self: &Arc<Self>,
        leases: &Arc<PrefetchCache>,
        key: &str,
        cost: u64,
    ) -> Decision {
        let decision = self.decide(key, FIRST_TIER, Demand::new(cost)).await;
        if decision.is_degraded() {
            return decision;
        }
        let (owner, balance) = leases.find(key);
        let Some(balance) = balance else {
            leases.record_request(owner, key);
            return decision;
        };
        let now = leases.now();
        if decision.is_granted() {
            balance.update_remaining(now, &decision);
            if balance.start_refill() {
                self.refill(key, leases, balance);
            }
        } else if cost == 1 {
            balance.update_remaining(now, &decision);
        }
        decision
    }

    /// Takes tokens ahead in the background. Whoever calls this has started the filling.
    fn refill(&self, key: &str, leases: &Arc<PrefetchCache>, balance: Arc<PrefetchedTokens>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return balance.finish_refill() };
        let asked = leases.now();
        let Some(amount) = leases.refill_amount(&balance, asked) else {
            // Too little is left to take any of it away from others.
            if !balance.should_bypass(asked) {
                balance.clear_remaining();
            }
            return balance.finish_refill();
        };
        let ask = StoreCheck {
            receipt: true,
            ..self.store_check(key, FIRST_TIER, Demand::new(amount), SlotMode::Peek)
        };
        let (store, leases, own) = (self.store.clone(), leases.clone(), self.fallback.fallback_key(key));
        drop(runtime.spawn(async move {
            let answer = store.execute(StoreRequest::TakeUpTo(ask)).await.and_then(single_decision);
            if let Ok(answer) = answer {
                let decision = merge_decisions(&answer, FIRST_TIER);
                let taken = answer.steps.iter().map(|step| step.receipt.cost).max().unwrap_or(0);
                own.count(taken);
                let now = leases.now();
                balance.update_remaining(now, &decision);
                if decision.is_granted()
                    && let Some(slot) = balance.insert(now, asked, leases.lifetime(), taken)
                {
                    balance.set_charge(slot, answer.charge());
                }
            }
            balance.finish_refill();
        }));
    }

    /// Takes something that can be given back.
    pub(super) async fn take(
        self: &Arc<Self>,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: SlotMode,
    ) -> Reservation {
        let own = match self.fallback.reserve_local(key, tier, demand, slots) {
            Ok(own) => own,
            Err(denied) => return self.record_degraded(*denied),
        };
        let ask = StoreCheck { receipt: true, ..self.store_check(key, tier, demand, slots) };
        let (remote, place) = (self.clone(), ask.key_ref.clone());
        let taken = background::run_uncancelled(async move {
            let answer =
                remote.store.execute(StoreRequest::Decide(vec![ask])).await.and_then(single_decision)?;
            let own = match merge_decisions(&answer, place.tier).is_granted() {
                true => remote.fallback.charge_local(own, &place.key, place.tier, demand, slots),
                false => None,
            };
            Ok::<_, StoreError>(Reservation::from_store(&remote, place, demand, &answer, own))
        });
        let error = match taken.await {
            Some(Ok(reservation)) => return reservation,
            Some(Err(error)) => error,
            None => StoreError::Unavailable("the call was given up".to_owned()),
        };
        self.record_degraded(self.fallback.take(&error, key, tier, demand, slots))
    }

    pub(super) async fn reset(&self, key: &str) -> Result<(), StoreError> {
        self.prefetch.iter().for_each(|leases| leases.remove(key));
        self.store.execute(StoreRequest::Reset(self.key_ref(key, FIRST_TIER))).await.map(drop)
    }

    /// Waits for something that the store has promised.
    pub(super) async fn sleep(&self, wait: Micros) {
        self.clock.wait_until(self.clock.now().plus(wait)).await;
    }

    /// Counts what was answered without the store.
    pub(super) fn record_degraded<T>(&self, answer: T) -> T {
        self.degraded_count.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Counts in this process what the store has granted for good.
    pub(super) fn count_granted(&self, own: LocalCount, key: &str, tier: usize, demand: Demand) {
        if let Some(own) = self.fallback.charge_local(own, key, tier, demand, SlotMode::Peek) {
            own.keep();
        }
    }

    fn key_ref(&self, key: &str, tier: usize) -> KeyRef {
        KeyRef { limit: self.limit.load_full(), key: key.to_owned(), tier }
    }

    pub(super) fn store_check(&self, key: &str, tier: usize, demand: Demand, slots: SlotMode) -> StoreCheck {
        StoreCheck { key_ref: self.key_ref(key, tier), demand, slot_mode: slots, receipt: false }
    }

    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        self.can_change_all(quotas)?;
        let old = self.limit.load_full();
        let quotas: Vec<_> = quotas.iter().map(|quota| self.store.effective_quota(*quota)).collect();
        self.fallback.change_all(&quotas, how)?;
        self.limit.store(Arc::new(StoreLimit::new(old.name(), quotas, old.selection(), how)));
        Ok(())
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
        let ahead = self.prefetch.as_ref().map_or(Micros::ZERO, |leases| leases.settings().time_to_live());
        let bound = |quota: &Quota| FleetBound {
            normal: quota.bound().with_prefetch(ahead),
            during_outage: self.fallback.bound(quota),
        };
        self.quotas().iter().map(bound).collect()
    }

    pub(super) fn max_stranded_tokens(&self) -> u64 {
        self.prefetch.as_ref().map_or(0, |leases| leases.max_stranded_tokens())
    }

    pub(super) fn degraded_count(&self) -> u64 {
        self.degraded_count.load(Ordering::Relaxed)
    }
}

/// What was taken ahead and not spent goes back.
impl Drop for RemoteLimiter {
    fn drop(&mut self) {
        for (key, charge, cost) in self.prefetch.iter().flat_map(|leases| leases.drain()) {
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

/// The answer to the only question.
pub(super) fn single_decision(reply: StoreReply) -> Result<StoreDecision, StoreError> {
    match reply {
        StoreReply::Decided(answers) if answers.len() == 1 => {
            answers.into_iter().next().ok_or_else(|| StoreError::Rejected(UNEXPECTED_REPLY.to_owned()))
        }
        _ => Err(StoreError::Rejected(UNEXPECTED_REPLY.to_owned())),
    }
}

pub(super) const UNEXPECTED_REPLY: &str = "an answer to another question";

/// One decision of all quotas that applied, or of the one tier that did.
pub(super) fn merge_decisions(answer: &StoreDecision, tier: usize) -> Decision {
    let mut fold = MostRestrictive::default();
    answer.steps.iter().for_each(|step| fold.add(step.decision));
    match tier {
        FIRST_TIER => fold.finish(),
        _ => fold.finish().with_quota(tier),
    }
}
