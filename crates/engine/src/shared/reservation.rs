//! What was taken, and can be given back, wherever it is counted.

use super::{Remote, line::Line};
use crate::{
    bucket::Bucket,
    clock::Clock,
    limiter::Limiter,
    memory::{Charge, Counts, Hold},
    reservation::Reservation,
    store::{Answer, Charged, Inquiry, Place, Reply, Request, Slots, Store},
};
use std::{
    cmp::Ordering,
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tidegate_core::{Decision, Demand, Kind, Micros, Receipt};
use tokio::task::JoinHandle;

/// Tokens taken ahead of their use, in memory or in a store; see [`Reservation`].
///
/// Dropping it gives everything back that time has not given back already, from a store in the background.
#[must_use = "dropping a reservation gives its tokens back"]
pub struct SharedReservation<'a> {
    decision: Decision,
    /// When it is time to go; `None` if that is now, or nothing was granted.
    ready: Option<Moment>,
    taken: Taken<'a>,
}

/// A moment on a clock.
#[derive(Clone)]
struct Moment {
    clock: Clock,
    at: Micros,
}

enum Taken<'a> {
    /// Nothing that could be given back.
    Nothing,
    Memory(Reservation<'a>),
    Store(Deposit),
    Local(Local),
}

/// What was taken in this process, and borrows nothing.
pub(super) struct Local {
    limiter: Arc<Limiter>,
    /// What stands for the key.
    owner: u64,
    charge: Charge,
    /// What is still to be settled.
    outstanding: u64,
}

impl Local {
    /// Spends it.
    pub(super) fn keep(mut self) {
        self.outstanding = 0;
    }

    /// Takes it apart into tokens and slots.
    fn divide(mut self) -> (Option<Self>, Option<Self>) {
        let kinds = self.limiter.space().kinds(self.charge.tier);
        let (tokens, slots) = divide(&kinds, &self.charge.receipts);
        let cost = std::mem::take(&mut self.outstanding);
        let part = |receipts: Vec<Receipt>, hold: Hold| {
            let charge = Charge { receipts, hold, ..self.charge.clone() };
            Self { limiter: self.limiter.clone(), owner: self.owner, charge, outstanding: cost }
        };
        (
            tokens.map(|receipts| part(receipts, Hold::Nothing)),
            slots.map(|receipts| part(receipts, Hold::Permit)),
        )
    }

    fn commit(mut self, cost: u64) {
        let reserved = std::mem::take(&mut self.outstanding);
        let bucket = Bucket::of_key(&self.limiter, self.owner);
        let bucket = bucket.tier(self.charge.tier).unwrap_or(bucket);
        if cost < reserved {
            bucket.refund(&self.charge, reserved - cost);
        } else if cost > reserved {
            bucket.decide(Demand::forced(cost - reserved));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            Bucket::of_key(&self.limiter, self.owner).refund(&self.charge, self.outstanding);
        }
    }
}

/// What a store was charged.
struct Deposit {
    store: Arc<dyn Store>,
    place: Place,
    charged: Charged,
    cost: u64,
    /// What this process has counted of it beside the store.
    own: Option<Local>,
}

impl<'a> SharedReservation<'a> {
    pub(super) fn in_memory(bucket: Bucket<'a>, demand: Demand, slots: Slots) -> Self {
        let hold = if slots == Slots::Take { Hold::Permit } else { Hold::Nothing };
        Self::of_memory(bucket.take(demand, hold))
    }

    /// What was taken in memory after standing in line.
    pub(super) fn of_memory(reservation: Reservation<'a>) -> Self {
        let decision = *reservation.decision();
        let ready = delay(&decision)
            .map(|_| Moment { clock: reservation.bucket().clock().clone(), at: reservation.ready_at() });
        Self { decision, ready, taken: Taken::Memory(reservation) }
    }

    pub(super) fn in_store(
        (store, clock): (&Arc<dyn Store>, &Clock),
        place: Place,
        demand: Demand,
        answer: &Answer,
        own: Option<Local>,
    ) -> Self {
        let decision = super::fold(answer, place.tier);
        if !decision.is_granted() {
            return Self::settled(decision);
        }
        let (store, charged, cost) = (store.clone(), answer.charged(), demand.cost);
        Self::of_store(decision, clock, Deposit { store, place, charged, cost, own })
    }

    /// What was taken in this process, and borrows nothing.
    pub(super) fn locally(
        limiter: &Arc<Limiter>,
        key: &str,
        tier: usize,
        demand: Demand,
        slots: Slots,
    ) -> Self {
        let hold = if slots == Slots::Take { Hold::Permit } else { Hold::Nothing };
        let bucket = limiter.bucket(key, tier);
        let (owner, reservation) = (bucket.owner(), bucket.take(demand, hold));
        Self::of_local(limiter.clone(), owner, reservation.into_parts(), demand.cost)
    }

    /// The same, from a reservation that was taken apart.
    pub(super) fn of_local(
        limiter: Arc<Limiter>,
        owner: u64,
        (decision, charge): (Decision, Charge),
        cost: u64,
    ) -> Self {
        if !decision.is_granted() {
            return Self::settled(decision);
        }
        let ready =
            delay(&decision).map(|wait| Moment { clock: limiter.clock().clone(), at: charge.at.plus(wait) });
        Self { decision, ready, taken: Taken::Local(Local { limiter, owner, charge, outstanding: cost }) }
    }

    /// What one of several questions was charged in a store.
    pub(super) fn of_deposit(
        remote: &Remote,
        place: Place,
        charged: Charged,
        (cost, own): (u64, Option<Local>),
        decision: Decision,
    ) -> Self {
        let store = remote.store.clone();
        Self::of_store(decision, &remote.clock, Deposit { store, place, charged, cost, own })
    }

    /// What was taken in this process, apart from the decision.
    pub(super) fn into_local(mut self) -> Option<Local> {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Local(local) => Some(local),
            _ => None,
        }
    }

    fn of_store(decision: Decision, clock: &Clock, deposit: Deposit) -> Self {
        let ready = delay(&decision).map(|wait| Moment { clock: clock.clone(), at: clock.now().plus(wait) });
        Self { decision, ready, taken: Taken::Store(deposit) }
    }

    /// Takes it apart into tokens, and slots that are given back on their own; see [`super::Claim`].
    pub(super) fn divide(mut self) -> (Option<Self>, Option<Self>) {
        let (decision, ready) = (self.decision, self.ready.take());
        let again = |taken| Self { decision, ready: ready.clone(), taken };
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Local(local) => {
                let (tokens, slots) = local.divide();
                let again = |local| again(Taken::Local(local));
                (tokens.map(again), slots.map(again))
            }
            Taken::Store(Deposit { store, place, charged, cost, own }) => {
                let kinds: Vec<_> =
                    place.quotas().map(|index| Counts::of(&place.limit.quotas()[index])).collect();
                let (tokens, slots) = divide(&kinds, &charged.receipts);
                let (own_tokens, own_slots) = own.map_or((None, None), Local::divide);
                let part = |receipts, own| {
                    let charged = Charged { receipts, generation: charged.generation };
                    let (store, place) = (store.clone(), place.clone());
                    again(Taken::Store(Deposit { store, place, charged, cost, own }))
                };
                let tokens = tokens.map(|receipts| part(receipts, own_tokens));
                (tokens, slots.map(|receipts| part(receipts, own_slots)))
            }
            taken => (Some(again(taken)), None),
        }
    }

    /// Settles the real cost like [`commit`](Self::commit), in a store in the background.
    pub fn settle(mut self, cost: u64) {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Memory(reservation) => reservation.commit(cost),
            Taken::Local(local) => local.commit(cost),
            Taken::Store(deposit) => {
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    drop(runtime.spawn(deposit.commit(cost)));
                }
            }
            Taken::Nothing => {}
        }
    }

    /// The same, told to have been taken without the store.
    pub(super) fn degraded(mut self) -> Self {
        self.decision = self.decision.degraded();
        self
    }

    /// One that has nothing to give back.
    pub(super) fn settled(decision: Decision) -> Self {
        Self { decision, ready: None, taken: Taken::Nothing }
    }

    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What was taken and is still to be settled; zero when nothing was granted.
    pub fn cost(&self) -> u64 {
        match &self.taken {
            Taken::Nothing => 0,
            Taken::Memory(reservation) => reservation.cost(),
            Taken::Store(deposit) => deposit.cost,
            Taken::Local(local) => local.outstanding,
        }
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        self.ready.as_ref().map_or(Duration::ZERO, |ready| ready.at.since(ready.clock.now()).into())
    }

    /// Waits until it is time to go, by the limiter's clock: in memory the one that it counts by, in a store the one that
    /// it was given for memory, else tokio's.
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = self.ready.clone();
        async move {
            if let Some(Moment { clock, at }) = ready {
                clock.wait_until(at).await;
            }
        }
    }

    /// Spends the tokens.
    pub fn keep(mut self) -> Decision {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Memory(reservation) => {
                reservation.keep();
            }
            Taken::Local(local) => local.keep(),
            Taken::Store(deposit) => {
                if let Some(own) = deposit.own {
                    own.keep();
                }
            }
            Taken::Nothing => {}
        }
        self.decision
    }

    /// Gives everything back, and waits until it has been.
    pub async fn cancel(mut self) {
        if let Taken::Store(deposit) = std::mem::replace(&mut self.taken, Taken::Nothing) {
            let cost = deposit.cost;
            deposit.refund(cost).await;
        }
    }

    /// Settles the real cost: gives the rest back, or charges what is missing; see [`Reservation::commit`].
    pub async fn commit(mut self, cost: u64) {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Memory(reservation) => reservation.commit(cost),
            Taken::Store(deposit) => deposit.commit(cost).await,
            Taken::Local(local) => local.commit(cost),
            Taken::Nothing => {}
        }
    }
}

impl Deposit {
    async fn commit(mut self, cost: u64) {
        if let Some(own) = self.own.take() {
            own.commit(cost);
        }
        match cost.cmp(&self.cost) {
            Ordering::Less => {
                let rest = self.cost - cost;
                self.refund(rest).await;
            }
            Ordering::Greater => {
                let missing = cost - self.cost;
                self.charge(missing).await;
            }
            Ordering::Equal => {}
        }
    }

    /// An answer that never comes leaves it charged: twice given back would be tokens out of nothing.
    async fn refund(self, cost: u64) {
        let Self { store, place, charged: charge, own, .. } = self;
        drop(own);
        let _ = store.perform(Request::Refund { place, charge, cost }).await;
    }

    async fn charge(self, cost: u64) {
        let Self { store, place, .. } = self;
        let ask = Inquiry { place, demand: Demand::forced(cost), slots: Slots::Look, receipt: false };
        let _ = store.perform(Request::Decide(vec![ask])).await;
    }
}

impl Drop for SharedReservation<'_> {
    fn drop(&mut self) {
        let Taken::Store(mut deposit) = std::mem::replace(&mut self.taken, Taken::Nothing) else { return };
        // This process need not wait for its own.
        drop(deposit.own.take());
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let cost = deposit.cost;
            drop(runtime.spawn(deposit.refund(cost)));
        }
    }
}

impl fmt::Debug for SharedReservation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedReservation").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// A slot that gives itself back when it is dropped, and that is renewed until then where it is a lease.
#[must_use = "dropping a permit gives its slot back"]
pub struct SharedPermit<'a> {
    reservation: SharedReservation<'a>,
    keeper: Option<Keeper>,
    /// Those who wait for it.
    line: Option<Line>,
}

/// Renews a lease in the background.
struct Keeper {
    task: JoinHandle<()>,
    /// The newest proof; `None` while the store does not know it.
    newest: Arc<Mutex<Option<Receipt>>>,
}

/// A lease is renewed so often before it ends.
const RENEWALS: u32 = 3;

impl<'a> SharedPermit<'a> {
    pub(super) fn new(mut reservation: SharedReservation<'a>, line: Option<Line>) -> Self {
        let keeper = match &mut reservation.taken {
            Taken::Store(deposit) => {
                deposit.keep_tokens();
                deposit.keep_alive()
            }
            _ => None,
        };
        Self { reservation, keeper, line }
    }

    /// Whether the slot was granted.
    pub fn decision(&self) -> &Decision {
        self.reservation.decision()
    }

    /// Whether the slot has been lost: the store could not be reached to renew it in time, and another may have it. It is
    /// taken again as soon as there is one.
    pub fn is_lost(&self) -> bool {
        let lost = |keeper: &Keeper| keeper.newest.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        self.keeper.as_ref().is_some_and(lost)
    }
}

impl Deposit {
    /// A permit gives back its slot; what else was charged stays charged.
    fn keep_tokens(&mut self) {
        let place = &self.place;
        if !place.quotas().any(|index| is_concurrency(place, index)) {
            return;
        }
        for (index, receipt) in place.quotas().zip(&mut self.charged.receipts) {
            if !is_concurrency(place, index) {
                *receipt = Receipt::default();
            }
        }
        let (tokens, slots) = self.own.take().map_or((None, None), Local::divide);
        tokens.into_iter().for_each(Local::keep);
        self.own = slots;
    }

    fn keep_alive(&self) -> Option<Keeper> {
        // Renewing names one quota: the only one that expires.
        let (receipt, lease) =
            self.place.quotas().zip(&self.charged.receipts).find_map(|(index, receipt)| {
                match self.place.limit.quotas()[index].kind() {
                    Kind::Concurrency(it) => it.lease().map(|lease| (*receipt, lease)),
                    _ => None,
                }
            })?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let newest = Arc::new(Mutex::new(Some(receipt)));
        let (store, place, shared) = (self.store.clone(), self.place.clone(), newest.clone());
        let pause = Duration::from(lease) / RENEWALS;
        let task = runtime.spawn(async move {
            loop {
                // A store that was unavailable may have lost it.
                let _ = tokio::time::timeout(pause, store.recovered()).await;
                let known = *shared.lock().unwrap_or_else(PoisonError::into_inner);
                let renewed = match known {
                    None => None,
                    Some(receipt) => {
                        let renew = Request::Renew { place: place.clone(), receipt };
                        match store.perform(renew).await {
                            Ok(Reply::Renewed(renewed)) => renewed,
                            Ok(_) | Err(_) => continue,
                        }
                    }
                };
                let newest = match renewed {
                    Some(receipt) => Some(receipt),
                    None => register(&store, &place, receipt.cost).await,
                };
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = newest;
            }
        });
        Some(Keeper { task, newest })
    }
}

/// Takes a slot again that the store does not know any more, if there is one left; tokens beside it were charged before.
async fn register(store: &Arc<dyn Store>, place: &Place, cost: u64) -> Option<Receipt> {
    let (demand, slots) = (Demand::now(cost), Slots::Take);
    let ask = Inquiry { place: place.clone(), demand, slots, receipt: true };
    let answer = store.perform(Request::Decide(vec![ask])).await.and_then(super::only).ok()?;
    if !super::fold(&answer, place.tier).is_granted() {
        return None;
    }
    let mut charge = answer.charged();
    let (index, _) = place.quotas().enumerate().find(|(_, index)| is_concurrency(place, *index))?;
    let receipt = std::mem::take(charge.receipts.get_mut(index)?);
    if charge.receipts.iter().any(|receipt| receipt.cost > 0) {
        let _ = store.perform(Request::Refund { place: place.clone(), charge, cost }).await;
    }
    Some(receipt)
}

impl Drop for SharedPermit<'_> {
    fn drop(&mut self) {
        if let Some(line) = self.line.take().filter(|_| self.decision().is_granted()) {
            line.wake_first();
        }
        let Some(Keeper { task, newest }) = self.keeper.take() else { return };
        task.abort();
        let newest = *newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Taken::Store(deposit) = &mut self.reservation.taken else { return };
        for receipt in deposit.charged.receipts.iter_mut().filter(|receipt| receipt.cost > 0) {
            // What was lost is not given back: another may have it.
            *receipt = newest.unwrap_or_default();
        }
    }
}

impl fmt::Debug for SharedPermit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedPermit").field("decision", self.decision()).finish_non_exhaustive()
    }
}

/// How long one who was granted something has to wait before going, if at all.
fn delay(decision: &Decision) -> Option<Micros> {
    Some(decision.wait()).filter(|wait| decision.is_granted() && *wait > Micros::ZERO)
}

/// Divides receipts into those of tokens and those of slots, each with nothing in the place of the others.
fn divide(kinds: &[Counts], receipts: &[Receipt]) -> (Option<Vec<Receipt>>, Option<Vec<Receipt>>) {
    let of = |kind: Counts| {
        let own =
            |(its, receipt): (&Counts, &Receipt)| if *its == kind { *receipt } else { Receipt::default() };
        kinds.contains(&kind).then(|| kinds.iter().zip(receipts).map(own).collect())
    };
    (of(Counts::Tokens), of(Counts::Permits))
}

fn is_concurrency(place: &Place, index: usize) -> bool {
    matches!(place.limit.quotas()[index].kind(), Kind::Concurrency(_))
}
