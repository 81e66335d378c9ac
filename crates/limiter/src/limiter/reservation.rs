//! What was taken, and can be given back, wherever it is counted.

use super::LocalPlace;
#[cfg(feature = "tokio")]
use super::remote::{Remote, fold};
#[cfg(feature = "tokio")]
use crate::{
    background,
    store::{self, Answer, Charged, Inquiry, Request, Slots, Store},
};
use crate::{
    clock::Clock,
    memory::{Charge, Counts, Hold},
};
#[cfg(feature = "tokio")]
use std::{cmp::Ordering, sync::Arc};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_core::{Decision, Demand, Micros, Receipt};
#[cfg(feature = "tokio")]
use tokio::task::JoinHandle;

/// Tokens taken ahead of their use, in memory or in a store: for work that must wait, or whose cost is known only afterwards.
///
/// Dropping it gives everything back that time has not given back already. Keep it with [`keep`](Self::keep), or
/// settle the real cost with [`commit`](Self::commit). In a store both happen in the background.
///
/// A refund never creates tokens: what has drained since (or belonged to a window that ended) is not given back a
/// second time. A change of quota settles what the limiter has outstanding: it stays charged. So does a reset with what
/// its key has outstanding, and with that of the one in five hundred other keys that are counted with it.
#[must_use = "dropping a reservation gives its tokens back"]
pub struct Reservation {
    decision: Decision,
    /// When it is time to go; `None` if that is now, or nothing was granted.
    ready: Option<Moment>,
    pub(super) taken: Taken,
}

/// A moment on a clock.
#[derive(Clone)]
struct Moment {
    clock: Clock,
    at: Micros,
}

pub(super) enum Taken {
    /// Nothing that could be given back.
    Nothing,
    Local(Local),
    #[cfg(feature = "tokio")]
    Store(Box<Deposit>),
}

/// What was taken in this process.
pub(super) struct Local {
    place: LocalPlace,
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
    pub(super) fn divide(mut self) -> (Option<Self>, Option<Self>) {
        let kinds = self.place.bucket().kinds(self.charge.tier);
        let (tokens, slots) = divide(&kinds, &self.charge.receipts);
        let cost = std::mem::take(&mut self.outstanding);
        let part = |receipts: Vec<Receipt>, hold: Hold| {
            let charge = Charge { receipts, hold, ..self.charge.clone() };
            Self { place: self.place.clone(), charge, outstanding: cost }
        };
        (
            tokens.map(|receipts| part(receipts, Hold::Nothing)),
            slots.map(|receipts| part(receipts, Hold::Permit)),
        )
    }

    fn commit(mut self, cost: u64) {
        let reserved = std::mem::take(&mut self.outstanding);
        let bucket = self.place.bucket();
        if cost < reserved {
            bucket.refund(&self.charge, reserved - cost);
        } else if cost > reserved {
            bucket.tier(self.charge.tier).unwrap_or(bucket).decide(Demand::forced(cost - reserved));
        }
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.place.bucket().refund(&self.charge, self.outstanding);
        }
    }
}

impl Reservation {
    /// Takes something in memory.
    pub(super) fn take(place: LocalPlace, demand: Demand, hold: Hold) -> Self {
        let taken = place.bucket().take(demand, hold).into_parts();
        Self::of(place, demand.cost, taken)
    }

    /// What was taken in memory.
    pub(super) fn of(place: LocalPlace, cost: u64, (decision, charge): (Decision, Charge)) -> Self {
        if !decision.is_granted() {
            return Self::settled(decision);
        }
        let ready = delay(&decision)
            .map(|wait| Moment { clock: place.bucket().clock().clone(), at: charge.at.plus(wait) });
        Self { decision, ready, taken: Taken::Local(Local { place, charge, outstanding: cost }) }
    }

    /// The same, or nothing.
    pub(super) fn of_result(
        place: LocalPlace,
        cost: u64,
        taken: Result<(Decision, Charge), Decision>,
    ) -> Self {
        match taken {
            Ok(taken) => Self::of(place, cost, taken),
            Err(denied) => Self::settled(denied),
        }
    }

    /// One that has nothing to give back.
    pub(super) fn settled(decision: Decision) -> Self {
        Self { decision, ready: None, taken: Taken::Nothing }
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
            #[cfg(feature = "tokio")]
            Taken::Store(deposit) => {
                let (tokens, slots) = deposit.divide();
                let again = |deposit| again(Taken::Store(Box::new(deposit)));
                (tokens.map(again), slots.map(again))
            }
            Taken::Nothing => (Some(again(Taken::Nothing)), None),
        }
    }

    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What was taken and is still to be settled; zero when nothing was granted.
    pub fn cost(&self) -> u64 {
        match &self.taken {
            Taken::Nothing => 0,
            Taken::Local(local) => local.outstanding,
            #[cfg(feature = "tokio")]
            Taken::Store(deposit) => deposit.cost,
        }
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        self.ready.as_ref().map_or(Duration::ZERO, |ready| ready.at.since(ready.clock.now()).into())
    }

    /// Waits until it is time to go, by the clock of the limiter; a limiter in a store that was given none waits by tokio's.
    #[cfg(feature = "tokio")]
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
            Taken::Local(local) => local.keep(),
            #[cfg(feature = "tokio")]
            Taken::Store(deposit) => {
                if let Some(own) = deposit.own {
                    own.keep();
                }
            }
            Taken::Nothing => {}
        }
        self.decision
    }

    /// Gives everything back, as dropping it does; what is returned can be awaited.
    pub fn cancel(mut self) -> Settlement {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            #[cfg(feature = "tokio")]
            Taken::Store(deposit) => {
                let cost = deposit.cost;
                Settlement::of(deposit.refund(cost))
            }
            taken => {
                drop(taken);
                Settlement::done()
            }
        }
    }

    /// Settles the real cost: gives the rest back, or charges what is missing. The work has been done, so the
    /// missing part is charged even if it must be repaid by those who come later. What is returned can be awaited.
    pub fn commit(mut self, cost: u64) -> Settlement {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Local(local) => local.commit(cost),
            #[cfg(feature = "tokio")]
            Taken::Store(deposit) => return Settlement::of(deposit.commit(cost)),
            Taken::Nothing => {}
        }
        Settlement::done()
    }
}

/// What a store was charged.
#[cfg(feature = "tokio")]
pub(super) struct Deposit {
    pub(super) store: Arc<dyn Store>,
    pub(super) place: store::Place,
    pub(super) charged: Charged,
    pub(super) cost: u64,
    /// What this process has counted of it beside the store.
    pub(super) own: Option<Local>,
}

#[cfg(feature = "tokio")]
impl Reservation {
    /// What a store has answered to one check.
    pub(super) fn in_store(
        remote: &Remote,
        place: store::Place,
        demand: Demand,
        answer: &Answer,
        own: Option<Local>,
    ) -> Self {
        let decision = fold(answer, place.tier);
        match decision.is_granted() {
            true => Self::of_store(remote, place, answer.charged(), (demand.cost, own), decision),
            false => Self::settled(decision),
        }
    }

    /// What one check was charged in a store.
    pub(super) fn of_store(
        remote: &Remote,
        place: store::Place,
        charged: Charged,
        (cost, own): (u64, Option<Local>),
        decision: Decision,
    ) -> Self {
        let clock = remote.clock();
        let ready = delay(&decision).map(|wait| Moment { clock: clock.clone(), at: clock.now().plus(wait) });
        let deposit = Deposit { store: remote.store().clone(), place, charged, cost, own };
        Self { decision, ready, taken: Taken::Store(Box::new(deposit)) }
    }

    /// What was taken in this process, apart from the decision.
    pub(super) fn into_local(mut self) -> Option<Local> {
        match std::mem::replace(&mut self.taken, Taken::Nothing) {
            Taken::Local(local) => Some(local),
            _ => None,
        }
    }

    /// The same, as one that was taken without the store.
    pub(super) fn degraded(mut self) -> Self {
        self.decision = self.decision.into_degraded();
        self
    }
}

#[cfg(feature = "tokio")]
impl Deposit {
    fn divide(self) -> (Option<Self>, Option<Self>) {
        let Self { store, place, charged, cost, own } = self;
        let kinds: Vec<_> = place.quotas().map(|index| Counts::of(&place.limit.quotas()[index])).collect();
        let (tokens, slots) = divide(&kinds, &charged.receipts);
        let (own_tokens, own_slots) = own.map_or((None, None), Local::divide);
        let part = |receipts, own| {
            let charged = Charged { receipts, generation: charged.generation };
            Self { store: store.clone(), place: place.clone(), charged, cost, own }
        };
        let tokens = tokens.map(|receipts| part(receipts, own_tokens));
        (tokens, slots.map(|receipts| part(receipts, own_slots)))
    }

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

#[cfg(feature = "tokio")]
impl Drop for Reservation {
    fn drop(&mut self) {
        let Taken::Store(mut deposit) = std::mem::replace(&mut self.taken, Taken::Nothing) else { return };
        // This process need not wait for its own.
        drop(deposit.own.take());
        let cost = deposit.cost;
        drop(Settlement::of(deposit.refund(cost)));
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// A reservation that is being settled: in memory it has been, in a store it is in the background. Whoever wants to know when it is done
/// awaits it.
#[derive(Debug)]
pub struct Settlement {
    #[cfg(feature = "tokio")]
    task: Option<JoinHandle<()>>,
}

impl Settlement {
    fn done() -> Self {
        Self {
            #[cfg(feature = "tokio")]
            task: None,
        }
    }

    /// On this runtime, or else on the thread for stores.
    #[cfg(feature = "tokio")]
    fn of(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { task: background::spawn_here(future) }
    }
}

impl Future for Settlement {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        #[cfg(feature = "tokio")]
        if let Some(task) = &mut self.get_mut().task {
            return Pin::new(task).poll(context).map(|_| ());
        }
        let _ = context;
        Poll::Ready(())
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
