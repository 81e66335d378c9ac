//! Reservations: charges that can be refunded, in memory or in a store.

use super::LocalBackend;
#[cfg(feature = "tokio")]
use super::remote::{RemoteLimiter, merge_decisions};
#[cfg(feature = "tokio")]
use crate::{
    background,
    store::{self, PermitMode, Store, StoreCharge, StoreCheck, StoreDecision, StoreRequest},
};
use crate::{
    clock::Clock,
    memory::{CellCharge, PermitHold, QuotaUnit},
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

/// Tokens charged before their use, in memory or in a store: for work that must wait, or whose cost is known only
/// afterwards.
///
/// Dropping it refunds the tokens that have not expired. Spend them with [`keep`](Self::keep), or settle the actual cost
/// with [`commit`](Self::commit). In a store both happen in the background.
///
/// A refund never creates tokens: tokens that have drained since, or belong to a window that ended, are not refunded. After
/// a change of the quota the outstanding charges of the limiter stay charged. After a reset of a key its outstanding
/// charges stay charged, and so do those of one in five hundred other keys, which share its reset counter.
#[must_use = "dropping a reservation refunds its tokens"]
pub struct Reservation {
    decision: Decision,
    /// When the tokens may be used; `None` if at once, or if nothing was granted.
    ready_at: Option<ReadyTime>,
    pub(super) charge: ReservedCharge,
}

/// A time on a clock.
#[derive(Clone)]
struct ReadyTime {
    clock: Clock,
    time: Micros,
}

pub(super) enum ReservedCharge {
    /// Nothing to refund.
    Nothing,
    Local(LocalCharge),
    #[cfg(feature = "tokio")]
    Store(Box<StoreReceipt>),
}

/// A charge in this process.
pub(super) struct LocalCharge {
    backend: LocalBackend,
    charge: CellCharge,
    /// The cost that is not settled yet.
    outstanding: u64,
}

impl LocalCharge {
    /// Spends it.
    pub(super) fn keep(mut self) {
        self.outstanding = 0;
    }

    /// Splits it into tokens and slots.
    pub(super) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let kinds = self.backend.bucket().units(self.charge.tier);
        let (tokens, slots) = split_receipts(&kinds, &self.charge.receipts);
        let cost = std::mem::take(&mut self.outstanding);
        let part = |receipts: Vec<Receipt>, hold: PermitHold| {
            let charge = CellCharge { receipts, hold, ..self.charge.clone() };
            Self { backend: self.backend.clone(), charge, outstanding: cost }
        };
        (
            tokens.map(|receipts| part(receipts, PermitHold::Nothing)),
            slots.map(|receipts| part(receipts, PermitHold::Permit)),
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
    /// Charges a bucket in memory.
    pub(super) fn take(backend: LocalBackend, demand: Demand, hold: PermitHold) -> Self {
        let taken = backend.bucket().take(demand, hold).into_parts();
        Self::from_charge(backend, demand.cost, taken)
    }

    /// Wraps a charge in memory.
    pub(super) fn from_charge(
        backend: LocalBackend,
        cost: u64,
        (decision, charge): (Decision, CellCharge),
    ) -> Self {
        if !decision.is_granted() {
            return Self::empty(decision);
        }
        let ready_at = delay(&decision).map(|wait| ReadyTime {
            clock: backend.bucket().clock().clone(),
            time: charge.charged_at.saturating_add(wait),
        });
        Self {
            decision,
            ready_at,
            charge: ReservedCharge::Local(LocalCharge { backend, charge, outstanding: cost }),
        }
    }

    /// Wraps a charge in memory, or a denial.
    pub(super) fn from_result(
        backend: LocalBackend,
        cost: u64,
        taken: Result<(Decision, CellCharge), Decision>,
    ) -> Self {
        match taken {
            Ok(taken) => Self::from_charge(backend, cost, taken),
            Err(denied) => Self::empty(denied),
        }
    }

    /// A reservation without a charge.
    pub(super) fn empty(decision: Decision) -> Self {
        Self { decision, ready_at: None, charge: ReservedCharge::Nothing }
    }

    /// Splits it into tokens, and slots that are released separately; see [`super::CombinedReservation`].
    pub(super) fn split(mut self) -> (Option<Self>, Option<Self>) {
        let (decision, ready) = (self.decision, self.ready_at.take());
        let with_charge = |taken| Self { decision, ready_at: ready.clone(), charge: taken };
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => {
                let (tokens, slots) = local.split();
                let with_charge = |local| with_charge(ReservedCharge::Local(local));
                (tokens.map(with_charge), slots.map(with_charge))
            }
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(receipt) => {
                let (tokens, slots) = receipt.split();
                let with_charge = |receipt| with_charge(ReservedCharge::Store(Box::new(receipt)));
                (tokens.map(with_charge), slots.map(with_charge))
            }
            ReservedCharge::Nothing => (Some(with_charge(ReservedCharge::Nothing)), None),
        }
    }

    /// The decision: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The cost that is not settled yet; zero if nothing was granted.
    pub fn cost(&self) -> u64 {
        match &self.charge {
            ReservedCharge::Nothing => 0,
            ReservedCharge::Local(local) => local.outstanding,
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(receipt) => receipt.cost,
        }
    }

    /// The remaining wait until the tokens may be used; zero if they are ready or nothing was granted.
    pub fn wait(&self) -> Duration {
        self.ready_at
            .as_ref()
            .map_or(Duration::ZERO, |ready| ready.time.saturating_sub(ready.clock.now()).into())
    }

    /// Waits until the tokens may be used, by the clock of the limiter. A limiter in a store without a clock uses tokio's.
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
            ReservedCharge::Store(receipt) => {
                if let Some(local) = receipt.local {
                    local.keep();
                }
            }
            ReservedCharge::Nothing => {}
        }
        self.decision
    }

    /// Refunds everything, as drop does; the returned future completes with the refund.
    pub fn cancel(mut self) -> Settlement {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(receipt) => {
                let cost = receipt.cost;
                Settlement::spawn(receipt.refund(cost))
            }
            taken => {
                drop(taken);
                Settlement::done()
            }
        }
    }

    /// Settles the actual cost: refunds the surplus, or charges the difference. The work is done, so the difference is charged
    /// even if later callers must repay it. The returned future completes with the settlement.
    pub fn commit(mut self, cost: u64) -> Settlement {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => local.commit(cost),
            #[cfg(feature = "tokio")]
            ReservedCharge::Store(receipt) => return Settlement::spawn(receipt.commit(cost)),
            ReservedCharge::Nothing => {}
        }
        Settlement::done()
    }
}

/// A charge in a store.
#[cfg(feature = "tokio")]
pub(super) struct StoreReceipt {
    pub(super) store: Arc<dyn Store>,
    pub(super) key_ref: store::KeyRef,
    pub(super) charge: StoreCharge,
    pub(super) cost: u64,
    /// The part of it that this process counted in memory as well.
    pub(super) local: Option<LocalCharge>,
}

#[cfg(feature = "tokio")]
impl Reservation {
    /// The result of one check in a store.
    pub(super) fn from_store(
        remote: &RemoteLimiter,
        key_ref: store::KeyRef,
        demand: Demand,
        store_decision: &StoreDecision,
        local: Option<LocalCharge>,
    ) -> Self {
        let decision = merge_decisions(store_decision, key_ref.tier);
        match decision.is_granted() {
            true => Self::from_store_charge(
                remote,
                key_ref,
                store_decision.charge(),
                (demand.cost, local),
                decision,
            ),
            false => Self::empty(decision),
        }
    }

    /// Wraps the charge of one check in a store.
    pub(super) fn from_store_charge(
        remote: &RemoteLimiter,
        key_ref: store::KeyRef,
        charged: StoreCharge,
        (cost, local): (u64, Option<LocalCharge>),
        decision: Decision,
    ) -> Self {
        let clock = remote.clock();
        let ready_at = delay(&decision)
            .map(|wait| ReadyTime { clock: clock.clone(), time: clock.now().saturating_add(wait) });
        let receipt = StoreReceipt { store: remote.store().clone(), key_ref, charge: charged, cost, local };
        Self { decision, ready_at, charge: ReservedCharge::Store(Box::new(receipt)) }
    }

    /// The charge in this process, without the decision.
    pub(super) fn into_local(mut self) -> Option<LocalCharge> {
        match std::mem::replace(&mut self.charge, ReservedCharge::Nothing) {
            ReservedCharge::Local(local) => Some(local),
            _ => None,
        }
    }

    /// Marks the decision as made without the store.
    pub(super) fn into_degraded(mut self) -> Self {
        self.decision = self.decision.into_degraded();
        self
    }
}

#[cfg(feature = "tokio")]
impl StoreReceipt {
    fn split(self) -> (Option<Self>, Option<Self>) {
        let Self { store, key_ref, charge: charged, cost, local } = self;
        let kinds: Vec<_> = key_ref
            .quota_indices()
            .map(|index| QuotaUnit::from_quota(&key_ref.limit.quotas()[index]))
            .collect();
        let (tokens, slots) = split_receipts(&kinds, &charged.receipts);
        let (local_tokens, local_slots) = local.map_or((None, None), LocalCharge::split);
        let part = |receipts, local| {
            let charged = StoreCharge { receipts, generation: charged.generation };
            Self { store: store.clone(), key_ref: key_ref.clone(), charge: charged, cost, local }
        };
        let tokens = tokens.map(|receipts| part(receipts, local_tokens));
        (tokens, slots.map(|receipts| part(receipts, local_slots)))
    }

    async fn commit(mut self, cost: u64) {
        if let Some(local) = self.local.take() {
            local.commit(cost);
        }
        match cost.cmp(&self.cost) {
            Ordering::Less => {
                let surplus = self.cost - cost;
                self.refund(surplus).await;
            }
            Ordering::Greater => {
                let missing = cost - self.cost;
                self.charge(missing).await;
            }
            Ordering::Equal => {}
        }
    }

    /// Is not retried: after a lost reply a second refund could create tokens, so the charge stays.
    async fn refund(self, cost: u64) {
        let Self { store, key_ref, charge, local, .. } = self;
        drop(local);
        let _ = store.execute(StoreRequest::Refund { key_ref, charge, cost }).await;
    }

    async fn charge(self, cost: u64) {
        let Self { store, key_ref, .. } = self;
        let check = StoreCheck {
            key_ref,
            demand: Demand::forced(cost),
            permit_mode: PermitMode::Peek,
            receipt: false,
        };
        let _ = store.execute(StoreRequest::Decide(vec![check])).await;
    }
}

#[cfg(feature = "tokio")]
impl Drop for Reservation {
    fn drop(&mut self) {
        let ReservedCharge::Store(mut receipt) = std::mem::replace(&mut self.charge, ReservedCharge::Nothing)
        else {
            return;
        };
        // The charge in this process is refunded at once.
        drop(receipt.local.take());
        let cost = receipt.cost;
        drop(Settlement::spawn(receipt.refund(cost)));
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation").field("decision", &self.decision).finish_non_exhaustive()
    }
}

/// The settlement of a reservation: finished in memory, in the background in a store. Await it to wait for its end.
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

    /// Spawns it on the current runtime, or on the background thread.
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

/// The delay of a granted decision, if there is one.
fn delay(decision: &Decision) -> Option<Micros> {
    Some(decision.wait()).filter(|wait| decision.is_granted() && *wait > Micros::ZERO)
}

/// Splits receipts into those of tokens and those of slots, with an empty receipt in place of the others.
fn split_receipts(kinds: &[QuotaUnit], receipts: &[Receipt]) -> (Option<Vec<Receipt>>, Option<Vec<Receipt>>) {
    let of = |kind: QuotaUnit| {
        let select = |(unit, receipt): (&QuotaUnit, &Receipt)| {
            if *unit == kind { *receipt } else { Receipt::default() }
        };
        kinds.contains(&kind).then(|| kinds.iter().zip(receipts).map(select).collect())
    };
    (of(QuotaUnit::Tokens), of(QuotaUnit::Permits))
}
