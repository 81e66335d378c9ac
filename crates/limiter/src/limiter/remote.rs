//! The backend in a store: what is asked of the store, and who answers when it does not.

use super::{
    BuildError, FIRST, FleetBound, LimiterBuilder, Reservation,
    lease::{Balance, Leases, Need},
    line::Queue,
    outage::{Fallback, Own},
};
use crate::{
    background,
    clock::Clock,
    fold::Fold,
    store::{Answer, Choice, Inquiry, Limit, Place, Reply, Request, Slots, Store, StoreError},
    wait::Manner,
};
use arc_swap::ArcSwap;
use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_core::{CarryOver, Decision, Demand, Micros, Quota};

/// Counts in a store.
pub(super) struct Remote {
    store: Arc<dyn Store>,
    limit: ArcSwap<Limit>,
    pub(super) fallback: Arc<Fallback>,
    leases: Option<Arc<Leases>>,
    pub(super) queue: Arc<Queue>,
    /// By which this process waits for what the store has promised it.
    clock: Clock,
    /// Decisions that were made without the store.
    degraded: AtomicU64,
}

impl Remote {
    pub(super) fn build(
        builder: LimiterBuilder,
        store: Arc<dyn Store>,
        quotas: &[Quota],
        choice: Choice,
    ) -> Result<Self, BuildError> {
        let shared = builder.shared().clone();
        if shared.name.is_empty() {
            return Err(BuildError::NoName);
        }
        let quotas: Vec<_> = quotas.iter().map(|quota| store.adapt(*quota)).collect();
        let clock = builder.given_clock().unwrap_or_else(Clock::tokio);
        let queue = Arc::new(Queue::new(builder.lines(Manner::Line), clock.clone()));
        let fallback = Arc::new(Fallback::new(shared.outage, builder.for_outages(), &quotas, choice)?);
        store.add_mode(shared.outage);
        let limit_at_once = quotas.iter().map(Quota::limit).min().unwrap_or(0);
        let counts_permits = quotas.iter().any(|quota| quota.rate().is_none());
        let ahead = shared.ahead.filter(|_| !counts_permits && choice == Choice::All);
        let leases = ahead.map(|ahead| Arc::new(Leases::new(ahead, limit_at_once)));
        let limit = ArcSwap::from_pointee(Limit::new(&shared.name, quotas, choice, shared.carry_over));
        Ok(Self { store, limit, fallback, leases, queue, clock, degraded: AtomicU64::new(0) })
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
            None => self.ask(key, cost).await,
        }
    }

    /// The tokens that are taken ahead, if a check of this cost may use them.
    #[inline]
    fn leases_for(&self, cost: u64) -> Option<&Arc<Leases>> {
        self.leases.as_ref().filter(|_| cost > 0 && !self.fallback.asks_both())
    }

    /// Takes `cost` from what was taken ahead. No future, because most checks of a hot key end here.
    #[inline]
    pub(super) fn spend(self: &Arc<Self>, key: &str, cost: u64) -> Option<Decision> {
        let leases = self.leases_for(cost)?;
        let (decision, need) = leases.spend(key, cost)?;
        if let Need::Refill(balance) = need {
            self.refill(key, leases, balance);
        }
        Some(decision)
    }

    /// Asks the store for what could not be [spent](Self::spend).
    pub(super) async fn ask(self: &Arc<Self>, key: &str, cost: u64) -> Decision {
        match self.leases_for(cost) {
            // Rare, and a future has room for everything in it.
            Some(leases) => Box::pin(self.ask_beside_leases(leases, key, cost)).await,
            None => self.decide(key, FIRST, Demand::new(cost)).await,
        }
    }

    /// Asks the store about one check.
    pub(super) async fn decide(&self, key: &str, tier: usize, demand: Demand) -> Decision {
        let own = match self.fallback.before(key, tier, demand, Slots::Look) {
            Ok(own) => own,
            Err(denied) => return self.without_store(*denied.decision()),
        };
        let ask = self.inquiry(key, tier, demand, Slots::Look);
        match self.store.perform(Request::Decide(vec![ask])).await.and_then(only) {
            Ok(answer) => {
                let decision = fold(&answer, tier);
                if decision.is_granted() {
                    self.keep_own(own, key, tier, demand);
                }
                decision
            }
            Err(error) => {
                drop(own);
                self.without_store(self.fallback.decide(&error, key, tier, demand))
            }
        }
    }

    pub(super) async fn take_up_to(&self, key: &str, tier: usize, max: u64) -> (u64, Decision) {
        // As much as there is cannot be asked of both: this process is asked for one, and counts the rest.
        let own = match self.fallback.before(key, tier, Demand::new(1), Slots::Look) {
            Ok(own) => own,
            Err(denied) => return (0, self.without_store(*denied.decision())),
        };
        let ask = Inquiry { receipt: true, ..self.inquiry(key, tier, Demand::new(max), Slots::Look) };
        match self.store.perform(Request::TakeUpTo(ask)).await.and_then(only) {
            Ok(answer) => {
                let decision = fold(&answer, tier);
                let taken = answer.steps.iter().map(|step| step.receipt.cost).max().unwrap_or(0);
                let taken = if decision.is_granted() { taken } else { 0 };
                drop(own);
                if taken > 0 {
                    self.keep_own(Own::Uncounted, key, tier, Demand::new(taken));
                }
                (taken, decision)
            }
            Err(error) => {
                drop(own);
                self.without_store(self.fallback.take_up_to(&error, key, tier, max))
            }
        }
    }

    /// Asks the store about one call, and takes tokens ahead if the key is worth it.
    async fn ask_beside_leases(self: &Arc<Self>, leases: &Arc<Leases>, key: &str, cost: u64) -> Decision {
        let decision = self.decide(key, FIRST, Demand::new(cost)).await;
        if decision.is_degraded() {
            return decision;
        }
        let (owner, balance) = leases.balance(key);
        let Some(balance) = balance else {
            leases.note(owner, key);
            return decision;
        };
        let now = leases.now();
        if decision.is_granted() {
            balance.knows(now, &decision);
            if balance.start_filling() {
                self.refill(key, leases, balance);
            }
        } else if cost == 1 {
            balance.knows(now, &decision);
        }
        decision
    }

    /// Takes tokens ahead in the background. Whoever calls this has started the filling.
    fn refill(&self, key: &str, leases: &Arc<Leases>, balance: Arc<Balance>) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return balance.filled() };
        let asked = leases.now();
        let Some(amount) = leases.amount(&balance, asked) else {
            // Too little is left to take any of it away from others.
            if !balance.go_straight(asked) {
                balance.forget_rest();
            }
            return balance.filled();
        };
        let ask = Inquiry { receipt: true, ..self.inquiry(key, FIRST, Demand::new(amount), Slots::Look) };
        let (store, leases, own) = (self.store.clone(), leases.clone(), self.fallback.own_of(key));
        drop(runtime.spawn(async move {
            let answer = store.perform(Request::TakeUpTo(ask)).await.and_then(only);
            if let Ok(answer) = answer {
                let decision = fold(&answer, FIRST);
                let taken = answer.steps.iter().map(|step| step.receipt.cost).max().unwrap_or(0);
                own.count(taken);
                let now = leases.now();
                balance.knows(now, &decision);
                if decision.is_granted()
                    && let Some(slot) = balance.put(now, asked, leases.lifetime(), taken)
                {
                    balance.prove(slot, answer.charged());
                }
            }
            balance.filled();
        }));
    }

    /// Takes something that can be given back.
    pub(super) async fn take(
        self: &Arc<Self>,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: Slots,
    ) -> Reservation {
        let own = match self.fallback.before(key, tier, demand, slots) {
            Ok(own) => own,
            Err(denied) => return self.without_store(*denied),
        };
        let ask = Inquiry { receipt: true, ..self.inquiry(key, tier, demand, slots) };
        let (remote, place) = (self.clone(), ask.place.clone());
        let taken = background::finish(async move {
            let answer = remote.store.perform(Request::Decide(vec![ask])).await.and_then(only)?;
            let own = match fold(&answer, place.tier).is_granted() {
                true => remote.fallback.after(own, &place.key, place.tier, demand, slots),
                false => None,
            };
            Ok::<_, StoreError>(Reservation::in_store(&remote, place, demand, &answer, own))
        });
        let error = match taken.await {
            Some(Ok(reservation)) => return reservation,
            Some(Err(error)) => error,
            None => StoreError::Away("the call was given up".to_owned()),
        };
        self.without_store(self.fallback.take(&error, key, tier, demand, slots))
    }

    pub(super) async fn reset(&self, key: &str) -> Result<(), StoreError> {
        self.leases.iter().for_each(|leases| leases.forget(key));
        self.store.perform(Request::Reset(self.place(key, FIRST))).await.map(drop)
    }

    /// Waits for something that the store has promised.
    pub(super) async fn pause(&self, wait: Micros) {
        self.clock.wait_until(self.clock.now().plus(wait)).await;
    }

    /// Counts what was answered without the store.
    pub(super) fn without_store<T>(&self, answer: T) -> T {
        self.degraded.fetch_add(1, Ordering::Relaxed);
        answer
    }

    /// Counts in this process what the store has granted for good.
    pub(super) fn keep_own(&self, own: Own, key: &str, tier: usize, demand: Demand) {
        if let Some(own) = self.fallback.after(own, key, tier, demand, Slots::Look) {
            own.keep();
        }
    }

    fn place(&self, key: &str, tier: usize) -> Place {
        Place { limit: self.limit.load_full(), key: key.to_owned(), tier }
    }

    pub(super) fn inquiry(&self, key: &str, tier: usize, demand: Demand, slots: Slots) -> Inquiry {
        Inquiry { place: self.place(key, tier), demand, slots, receipt: false }
    }

    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        self.can_change_all(quotas)?;
        let old = self.limit.load_full();
        let quotas: Vec<_> = quotas.iter().map(|quota| self.store.adapt(*quota)).collect();
        self.fallback.change_all(&quotas, how)?;
        self.limit.store(Arc::new(Limit::new(old.name(), quotas, old.choice(), how)));
        Ok(())
    }

    pub(super) fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        let old = self.limit.load();
        match quotas.len() == old.quotas().len() {
            true => Ok(()),
            false => Err(BuildError::different_quota(old.quotas(), quotas)),
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
        match limit.choice() {
            Choice::All => 1,
            Choice::Tier => limit.quotas().len(),
        }
    }

    pub(super) fn bounds(&self) -> Vec<FleetBound> {
        let ahead = self.leases.as_ref().map_or(Micros::ZERO, |leases| leases.settings().time_to_live());
        let bound = |quota: &Quota| FleetBound {
            usual: quota.bound().with_prefetch(ahead),
            during_outage: self.fallback.bound(quota),
        };
        self.quotas().iter().map(bound).collect()
    }

    pub(super) fn stranded(&self) -> u64 {
        self.leases.as_ref().map_or(0, |leases| leases.stranded())
    }

    pub(super) fn degraded(&self) -> u64 {
        self.degraded.load(Ordering::Relaxed)
    }
}

/// What was taken ahead and not spent goes back.
impl Drop for Remote {
    fn drop(&mut self) {
        for (key, charge, cost) in self.leases.iter().flat_map(|leases| leases.empty()) {
            let refund = self.store.perform(Request::Refund { place: self.place(&key, FIRST), charge, cost });
            drop(background::spawn_here(async move {
                let _ = refund.await;
            }));
        }
    }
}

/// The answer to the only question.
pub(super) fn only(reply: Reply) -> Result<Answer, StoreError> {
    match reply {
        Reply::Decided(answers) if answers.len() == 1 => {
            answers.into_iter().next().ok_or_else(|| StoreError::Refused(NO_ANSWER.to_owned()))
        }
        _ => Err(StoreError::Refused(NO_ANSWER.to_owned())),
    }
}

pub(super) const NO_ANSWER: &str = "an answer to another question";

/// One decision of all quotas that applied, or of the one tier that did.
pub(super) fn fold(answer: &Answer, tier: usize) -> Decision {
    let mut fold = Fold::default();
    answer.steps.iter().for_each(|step| fold.add(step.decision));
    match tier {
        FIRST => fold.finish(),
        _ => fold.finish().with_quota(tier),
    }
}
