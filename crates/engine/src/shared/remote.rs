//! What is asked of a store, and who answers when it does not.

use super::{
    FIRST, Home, SharedLimiter, SharedReservation, joint,
    lease::{Balance, Leases},
    line::Queue,
    outage::{Fallback, Own},
};
use crate::{
    clock::Clock,
    fold::Fold,
    store::{Answer, Inquiry, Limit, Place, Reply, Request, Slots, Store, StoreError},
};
use arc_swap::ArcSwap;
use std::sync::{Arc, atomic::Ordering};
use tidegate_core::{CarryOver, Decision, Demand, Quota};

/// What is needed to ask a store.
pub(super) struct Remote {
    pub(super) store: Arc<dyn Store>,
    pub(super) limit: ArcSwap<Limit>,
    pub(super) fallback: Arc<Fallback>,
    pub(super) leases: Option<Arc<Leases>>,
    pub(super) queue: Arc<Queue>,
    /// By which this process waits for what the store has promised it.
    pub(super) clock: Clock,
}

impl SharedLimiter {
    pub(super) async fn put(&self, remote: &Remote, key: &str, tier: usize, demand: Demand) -> Decision {
        let own = match remote.fallback.before(key, tier, demand, Slots::Look) {
            Ok(own) => own,
            Err(denied) => return self.without_store(*denied.decision()),
        };
        let ask = remote.inquiry(key, tier, demand, Slots::Look);
        match remote.store.perform(Request::Decide(vec![ask])).await.and_then(only) {
            Ok(answer) => {
                let decision = fold(&answer, tier);
                if decision.is_granted() {
                    remote.keep_own(own, key, tier, demand);
                }
                decision
            }
            Err(error) => {
                drop(own);
                self.without_store(remote.fallback.decide(&error, key, tier, demand))
            }
        }
    }

    /// Asks the store about one call, and takes tokens ahead if the key is worth it.
    pub(super) async fn ask_beside_leases(&self, leases: &Arc<Leases>, key: &str, cost: u64) -> Decision {
        let Home::Store(remote) = &self.home else { return Decision::unlimited() };
        let decision = self.put(remote, key, FIRST, Demand::now(cost)).await;
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
    pub(super) fn refill(&self, key: &str, leases: &Arc<Leases>, balance: Arc<Balance>) {
        let (Home::Store(remote), Ok(runtime)) = (&self.home, tokio::runtime::Handle::try_current()) else {
            return balance.filled();
        };
        let asked = leases.now();
        let Some(amount) = leases.amount(&balance, asked) else {
            // Too little is left to take any of it away from others.
            if !balance.go_straight(asked) {
                balance.forget_rest();
            }
            return balance.filled();
        };
        let ask = Inquiry { receipt: true, ..remote.inquiry(key, FIRST, Demand::now(amount), Slots::Look) };
        let (store, leases, own) = (remote.store.clone(), leases.clone(), remote.fallback.own_of(key));
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

    pub(super) async fn take_in_store(
        &self,
        remote: &Remote,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: Slots,
    ) -> SharedReservation<'static> {
        let own = match remote.fallback.before(key, tier, demand, slots) {
            Ok(own) => own,
            Err(denied) => return self.without_store(*denied),
        };
        let ask = Inquiry { receipt: true, ..remote.inquiry(key, tier, demand, slots) };
        let (store, clock, place) = (remote.store.clone(), remote.clock.clone(), ask.place.clone());
        let fallback = remote.fallback.clone();
        let taken = joint::to_its_end(async move {
            let answer = store.perform(Request::Decide(vec![ask])).await.and_then(only)?;
            let own = match fold(&answer, place.tier).is_granted() {
                true => fallback.after(own, &place.key, place.tier, demand, slots),
                false => None,
            };
            Ok::<_, StoreError>(SharedReservation::in_store((&store, &clock), place, demand, &answer, own))
        });
        let error = match taken.await {
            Some(Ok(reservation)) => return reservation,
            Some(Err(error)) => error,
            None => StoreError::Away("the call was given up".to_owned()),
        };
        self.without_store(remote.fallback.take(&error, key, tier, demand, slots))
    }

    /// Counts what was answered without the store.
    pub(super) fn without_store<T>(&self, answer: T) -> T {
        self.degraded.fetch_add(1, Ordering::Relaxed);
        answer
    }
}

impl Remote {
    /// Counts in this process what the store has granted for good.
    pub(super) fn keep_own(&self, own: Own, key: &str, tier: usize, demand: Demand) {
        if let Some(own) = self.fallback.after(own, key, tier, demand, Slots::Look) {
            own.keep();
        }
    }

    pub(super) fn place(&self, key: &str, tier: usize) -> Place {
        Place { limit: self.limit.load_full(), key: key.to_owned(), tier }
    }

    pub(super) fn inquiry(&self, key: &str, tier: usize, demand: Demand, slots: Slots) -> Inquiry {
        Inquiry { place: self.place(key, tier), demand, slots, receipt: false }
    }

    pub(super) fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), crate::BuildError> {
        let old = self.limit.load_full();
        if quotas.len() != old.quotas().len() {
            return Err(crate::BuildError::different_quota(old.quotas(), quotas));
        }
        let quotas: Vec<_> = quotas.iter().map(|quota| self.store.adapt(*quota)).collect();
        self.fallback.change_all(&quotas, how)?;
        self.limit.store(Arc::new(Limit::new(old.name(), quotas, old.choice(), how)));
        Ok(())
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
        _ => fold.finish().of_quota(tier),
    }
}
