//! What was taken, and can be given back, wherever it is counted.

use super::LocalBackend;
#[cfg(feature = "tokio")]
use super::remote::{RemoteLimiter, merge_decisions};
#[cfg(feature = "tokio")]
use crate::{
    background,
    store::{self, SlotMode, Store, StoreCharge, StoreCheck, StoreDecision, StoreRequest},
};
use crate::{
    clock::Clock,
    memory::{CellCharge, QuotaUnit, SlotHold},
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
    ready_at: Option<ReadyTime>,
    pub(super) charge: ReservedCharge,
}

/// A moment on a clock.
#[derive(Clone)]
struct ReadyTime {
    clock: Clock,
    time: Micros,
}

pub(super) enum ReservedCharge {
    /// Nothing that could be given back.
    Nothing,
    Local(LocalCharge),
    #[cfg(feature = "tokio")]
    Store(Box<StoreReceipt>),
}

/// What was taken in this process.
pub(super) struct LocalCharge {
    backend: LocalBackend,
    charge: CellCharge,
    /// What is still to be settled.
    outstanding: u64,
}

impl LocalCharge {
    /// Spends it.
    pub(super) fn keep(mut self) {
        self.outstanding = 0;
    }

    /// Takes it apart into tokens and slots.
    pub(super) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let kinds = self.backend.bucket().units(self.charge.tier);
        let (tokens, slots) = split_receipts(&kinds, &self.charge.receipts);
        let cost = std::mem::take(&mut self.outstanding);
        let part = |receipts: Vec<Receipt>, hold: SlotHold| {
            let charge = CellCharge { receipts, hold, ..self.charge.clone() };
            Self { backend: self.backend.clone(), charge, outstanding: cost }
        };
        (
            tokens.map(|receipts| part(receipts, SlotHold::Nothing)),
            slots.map(|receipts| part(receipts, SlotHold::Permit)),
        )
    }

    fn commit(mut self, cost: u64) {
        let reserved = std::mem::take(&mut self.outstanding);
        let bucket = self.backend.bucket();
        if cost < reserved {
            bucket.refund(&self.charge, reserved - cost);
        } else if cost > reserved {
            bucket.tier(self.charge.tier).unwrap_or(bucket).decide(Demand::forced(cost - reserved));
        }
    }
}

impl Drop for LocalCharge {
    fn drop(&mut self) {
        if self.outstanding > 0 {
            self.backend.bucket().refund(&self.charge, self.outstanding);
        }
    }
}

impl Reservation {
    /// Takes something in memory.
    pub(super) fn take(place: LocalBackend, demand: Demand, hold: SlotHold) -> Self {
        let taken = place.bucket().take(demand, hold).into_parts();
        Self::from_charge(place, demand.cost, taken)
    }

    /// What was taken in memory.
    pub(super) fn from_charge(
        place: LocalBackend,
        cost: u64,
        (decision, charge): (Decision, CellCharge),
    ) -> Self {
        if !decision.is_granted() {
            return Self::empty(decision);
        }
        let ready = delay(&decision).map(|wait| ReadyTime {
            clock: place.bucket().clock().clone(),
            time: charge.charged_at.plus(wait),
        });
        Self {
            decision,
            ready_at: ready,
            charge: ReservedCharge::Local(LocalCharge { backend: place, charge, outstanding: cost }),
        }
    }

    /// The same, or nothing.
    pub(super) fn from_result(
        place: LocalBackend,
        cost: u64,
        taken: Result<(Decision, CellCharge), Decision>,
    ) -> Self {
        match taken {
            Ok(taken) => Self::from_charge(place, cost, taken),
            Err(denied) => Self::empty(denied),
        }
    }

    /// One that has nothing to give back.
    pub(super) fn empty(decision: Decision) -> Self {
        Self { decision, ready_at: None, charge: ReservedCharge::Nothing }
    }

    /// Takes it apart into tokens, and slots that are given back on their own; see [`super::CombinedReservation`].
    pub(super) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let (decision, ready) = (self.decision, self.ready_at.take());
        let again = |taken| Self { decision, ready_at: ready.clone(), charge: taken };
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => {
                let (tokens, slots) = local.split();
                let again = |local| again(ReservedCharge::Local(local));
                (tokens.map(again), slots.map(again))
            }
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(deposit) => {
                let (tokens, slots) = deposit.split();
                let again = |deposit| again(ReservedCharge::Store(Box::new(deposit)));
                (tokens.map(again), slots.map(again))
            }
            ReservedCharge::Nothing => (Some(again(ReservedCharge::Nothing)), None),
        }
    }

    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What was taken and is still to be settled; zero when nothing was granted.
    pub fn cost(&self) -> u64 {
        match &self.charge {
            ReservedCharge::Nothing => 0,
            ReservedCharge::Local(local) => local.outstanding,
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(deposit) => deposit.cost,
        }
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        self.ready_at.as_ref().map_or(Duration::ZERO, |ready| ready.time.since(ready.clock.now()).into())
    }

    /// Waits until it is time to go, by the clock of the limiter; a limiter in a store that was given none waits by tokio's.
    #[cfg(feature = "tokio")]
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = self.ready_at.clone();
        async move {
            if let Some(ReadyTime { clock, time: at }) = ready {
                clock.wait_until(at).await;
            }
        }
    }

    /// Spends the tokens.
    pub fn keep(mut self) -> Decision {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => local.keep(),
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(deposit) => {
                if let Some(own) = deposit.local {
                    own.keep();
                }
            }
            ReservedCharge::Nothing => {}
        }
        self.decision
    }

    /// Gives everything back, as dropping it does; what is returned can be awaited.
    pub fn cancel(mut self) -> Settlement {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(deposit) => {
                let cost = deposit.cost;
                Settlement::spawn(deposit.refund(cost))
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
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => local.commit(cost),
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(deposit) => return Settlement::spawn(deposit.commit(cost)),
            ReservedCharge::Nothing => {}
        }
        Settlement::done()
    }
}

/// What a store was charged.
#[cfg(feature = "tokio")]
pub(super) struct StoreReceipt {
    pub(super) store: Arc<dyn Store>,
    pub(super) key_ref: store::KeyRef,
    pub(super) charge: StoreCharge,
    pub(super) cost: u64,
    /// What this process has counted of it beside the store.
    pub(super) local: Option<LocalCharge>,
}

#[cfg(feature = "tokio")]
impl Reservation {
    /// What a store has answered to one check.
    pub(super) fn from_store(
        remote: &RemoteLimiter,
        place: store::KeyRef,
        demand: Demand,
        answer: &StoreDecision,
        own: Option<LocalCharge>,
    ) -> Self {
        let decision = merge_decisions(answer, place.tier);
        match decision.is_granted() {
            true => Self::from_store_charge(remote, place, answer.charge(), (demand.cost, own), decision),
            false => Self::empty(decision),
        }
    }

    /// What one check was charged in a store.
    pub(super) fn from_store_charge(
        remote: &RemoteLimiter,
        place: store::KeyRef,
        charged: StoreCharge,
        (cost, own): (u64, Option<LocalCharge>),
        decision: Decision,
    ) -> Self {
        let clock = remote.clock();
        let ready =
            delay(&decision).map(|wait| ReadyTime { clock: clock.clone(), time: clock.now().plus(wait) });
        let deposit =
            StoreReceipt { store: remote.store().clone(), key_ref: place, charge: charged, cost, local: own };
        Self { decision, ready_at: ready, charge: ReservedCharge::Store(Box::new(deposit)) }
    }

    /// What was taken in this process, apart from the decision.
    pub(super) fn into_local(mut self) -> Option<LocalCharge> {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => Some(local),
            _ => None,
        }
    }

    /// The same, as one that was taken without the store.
    pub(super) fn into_degraded(mut self) -> Self {
        self.decision = self.decision.into_degraded();
        self
    }
}

#[cfg(feature = "tokio")]
impl StoreReceipt {
    fn split(self) -> (Option<Self>, Option<Self>) {
        let Self { store, key_ref: place, charge: charged, cost, local: own } = self;
        let kinds: Vec<_> =
            place.quota_indices().map(|index| QuotaUnit::from_quota(&place.limit.quotas()[index])).collect();
        let (tokens, slots) = split_receipts(&kinds, &charged.receipts);
        let (own_tokens, own_slots) = own.map_or((None, None), LocalCharge::split);
        let part = |receipts, own| {
            let charged = StoreCharge { receipts, generation: charged.generation };
            Self { store: store.clone(), key_ref: place.clone(), charge: charged, cost, local: own }
        };
        let tokens = tokens.map(|receipts| part(receipts, own_tokens));
        (tokens, slots.map(|receipts| part(receipts, own_slots)))
    }

    async fn commit(mut self, cost: u64) {
        if let Some(own) = self.local.take() {
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
        let Self { store, key_ref: place, charge, local: own, .. } = self;
        drop(own);
        let _ = store.execute(StoreRequest::Refund { key_ref: place, charge, cost }).await;
    }

    async fn charge(self, cost: u64) {
        let Self { store, key_ref: place, .. } = self;
        let ask = StoreCheck {
            key_ref: place,
            demand: Demand::forced(cost),
            slot_mode: SlotMode::Peek,
            receipt: false,
        };
        let _ = store.execute(StoreRequest::Decide(vec![ask])).await;
    }
}

#[cfg(feature = "tokio")]
impl Drop for Reservation {
    fn drop(&mut self) {
        let ReservedCharge::Store(mut deposit) = std::mem::replace(&mut self.charge, ReservedCharge::Nothing)
        else {
            return;
        };
        // This process need not wait for its own.
        drop(deposit.local.take());
        let cost = deposit.cost;
        drop(Settlement::spawn(deposit.refund(cost)));
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
    fn spawn(future: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { task: background::spawn_in_current(future) }
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
fn split_receipts(kinds: &[QuotaUnit], receipts: &[Receipt]) -> (Option<Vec<Receipt>>, Option<Vec<Receipt>>) {
    let of = |kind: QuotaUnit| {
        let own =
            |(its, receipt): (&QuotaUnit, &Receipt)| if *its == kind { *receipt } else { Receipt::default() };
        kinds.contains(&kind).then(|| kinds.iter().zip(receipts).map(own).collect())
    };
    (of(QuotaUnit::Tokens), of(QuotaUnit::Permits))
}
