//! A slot that gives itself back.

use super::{LocalBackend, Reservation};
#[cfg(feature = "tokio")]
use super::{
    queue::StoreQueue,
    remote::{merge_decisions, single_decision},
    reservation::{LocalCharge, ReservedCharge, StoreReceipt},
};
use crate::memory::SlotHold;
#[cfg(feature = "tokio")]
use crate::store::{KeyRef, SlotMode, Store, StoreCheck, StoreReply, StoreRequest};
use std::fmt;
#[cfg(feature = "tokio")]
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
#[cfg(feature = "tokio")]
use tidegate_core::{AlgorithmKind, Receipt};
use tidegate_core::{Decision, Demand};
#[cfg(feature = "tokio")]
use tokio::task::JoinHandle;

/// A slot that gives itself back when it is dropped, by a panic or a cancelled future too. In a store it is a lease, which is renewed
/// until then.
#[must_use = "dropping a permit gives its slot back"]
pub struct Permit {
    state: PermitState,
}

enum PermitState {
    /// A slot in memory and nothing else.
    Slot(SlotPermit),
    /// A slot beside other quotas, or tokens, or nothing.
    Reservation(Reservation),
    #[cfg(feature = "tokio")]
    Store(Box<LeasedPermit>),
}

struct SlotPermit {
    decision: Decision,
    backend: LocalBackend,
}

impl Drop for SlotPermit {
    #[inline]
    fn drop(&mut self) {
        self.backend.bucket().release_slot();
    }
}

impl Permit {
    /// Takes a slot in memory.
    #[inline]
    pub(super) fn take(backend: LocalBackend) -> Self {
        let slot = backend.bucket().try_acquire_slot();
        match slot {
            Some(decision) => Self { state: PermitState::Slot(SlotPermit { decision, backend }) },
            None => Self::from_reservation(Reservation::take(backend, Demand::new(1), SlotHold::Permit)),
        }
    }

    /// What was taken in memory.
    pub(super) fn from_reservation(reservation: Reservation) -> Self {
        Self { state: PermitState::Reservation(reservation) }
    }

    /// Whether the slot was granted.
    pub fn decision(&self) -> &Decision {
        match &self.state {
            PermitState::Slot(slot) => &slot.decision,
            PermitState::Reservation(reservation) => reservation.decision(),
            #[cfg(feature = "tokio")]
            PermitState::Store(lease) => lease.reservation.decision(),
        }
    }

    /// Whether the slot has been lost: the store could not be reached to renew it in time, and another may have it. It is
    /// taken again as soon as there is one.
    pub fn is_lost(&self) -> bool {
        match &self.state {
            PermitState::Slot(_) | PermitState::Reservation(_) => false,
            #[cfg(feature = "tokio")]
            PermitState::Store(lease) => lease.is_lost(),
        }
    }

    /// Whether it was taken in a store.
    pub fn is_in_store(&self) -> bool {
        match &self.state {
            PermitState::Slot(_) | PermitState::Reservation(_) => false,
            #[cfg(feature = "tokio")]
            PermitState::Store(_) => true,
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("decision", self.decision()).finish_non_exhaustive()
    }
}

/// A slot in a store.
#[cfg(feature = "tokio")]
struct LeasedPermit {
    reservation: Reservation,
    renewer: Option<LeaseRenewer>,
    /// Those of this process who wait for it.
    queue: StoreQueue,
}

/// Renews a lease in the background.
#[cfg(feature = "tokio")]
struct LeaseRenewer {
    task: JoinHandle<()>,
    /// The newest proof; `None` while the store does not know it.
    latest_receipt: Arc<Mutex<Option<Receipt>>>,
}

/// How often a lease is renewed before it ends.
#[cfg(feature = "tokio")]
const RENEWALS_PER_LEASE: u32 = 3;

#[cfg(feature = "tokio")]
impl Permit {
    /// What was taken in a store, or beside it while the store is unavailable.
    pub(super) fn from_store(mut reservation: Reservation, queue: StoreQueue) -> Self {
        let renewer = match &mut reservation.charge {
            ReservedCharge::Store(deposit) => {
                deposit.keep_tokens();
                deposit.start_renewal()
            }
            _ => None,
        };
        Self { state: PermitState::Store(Box::new(LeasedPermit { reservation, renewer, queue })) }
    }
}

#[cfg(feature = "tokio")]
impl LeasedPermit {
    fn is_lost(&self) -> bool {
        let lost = |renewer: &LeaseRenewer| {
            renewer.latest_receipt.lock().unwrap_or_else(PoisonError::into_inner).is_none()
        };
        self.renewer.as_ref().is_some_and(lost)
    }
}

#[cfg(feature = "tokio")]
impl Drop for LeasedPermit {
    fn drop(&mut self) {
        if self.reservation.decision().is_granted() {
            self.queue.wake_first();
        }
        let Some(LeaseRenewer { task, latest_receipt: newest }) = self.renewer.take() else { return };
        task.abort();
        let newest = *newest.lock().unwrap_or_else(PoisonError::into_inner);
        let ReservedCharge::Store(deposit) = &mut self.reservation.charge else { return };
        for receipt in deposit.charge.receipts.iter_mut().filter(|receipt| receipt.cost > 0) {
            // What was lost is not given back: another may have it.
            *receipt = newest.unwrap_or_default();
        }
    }
}

#[cfg(feature = "tokio")]
impl StoreReceipt {
    /// A permit gives back its slot; what else was charged stays charged.
    fn keep_tokens(&mut self) {
        let place = &self.key_ref;
        if !place.quota_indices().any(|index| is_concurrency(place, index)) {
            return;
        }
        for (index, receipt) in place.quota_indices().zip(&mut self.charge.receipts) {
            if !is_concurrency(place, index) {
                *receipt = Receipt::default();
            }
        }
        let (tokens, slots) = self.local.take().map_or((None, None), LocalCharge::split);
        tokens.into_iter().for_each(LocalCharge::keep);
        self.local = slots;
    }

    fn start_renewal(&self) -> Option<LeaseRenewer> {
        // Renewing names one quota: the only one that expires.
        let (receipt, lease) = self.key_ref.quota_indices().zip(&self.charge.receipts).find_map(
            |(index, receipt)| match self.key_ref.limit.quotas()[index].kind() {
                AlgorithmKind::Concurrency(it) => it.lease().map(|lease| (*receipt, lease)),
                _ => None,
            },
        )?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let newest = Arc::new(Mutex::new(Some(receipt)));
        let (store, place, shared) = (self.store.clone(), self.key_ref.clone(), newest.clone());
        let pause = Duration::from(lease) / RENEWALS_PER_LEASE;
        let task = runtime.spawn(async move {
            loop {
                // A store that was unavailable may have lost it.
                let _ = tokio::time::timeout(pause, store.wait_recovered()).await;
                let known = *shared.lock().unwrap_or_else(PoisonError::into_inner);
                let renewed = match known {
                    None => None,
                    Some(receipt) => {
                        let renew = StoreRequest::Renew { key_ref: place.clone(), receipt };
                        match store.execute(renew).await {
                            Ok(StoreReply::Renewed(renewed)) => renewed,
                            Ok(_) | Err(_) => continue,
                        }
                    }
                };
                let newest = match renewed {
                    Some(receipt) => Some(receipt),
                    None => reacquire(&store, &place, receipt.cost).await,
                };
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = newest;
            }
        });
        Some(LeaseRenewer { task, latest_receipt: newest })
    }
}

/// Takes a slot again that the store does not know any more, if there is one left; tokens beside it were charged before.
#[cfg(feature = "tokio")]
async fn reacquire(store: &Arc<dyn Store>, place: &KeyRef, cost: u64) -> Option<Receipt> {
    let (demand, slots) = (Demand::new(cost), SlotMode::Acquire);
    let ask = StoreCheck { key_ref: place.clone(), demand, slot_mode: slots, receipt: true };
    let answer = store.execute(StoreRequest::Decide(vec![ask])).await.and_then(single_decision).ok()?;
    if !merge_decisions(&answer, place.tier).is_granted() {
        return None;
    }
    let mut charge = answer.charge();
    let (index, _) = place.quota_indices().enumerate().find(|(_, index)| is_concurrency(place, *index))?;
    let receipt = std::mem::take(charge.receipts.get_mut(index)?);
    if charge.receipts.iter().any(|receipt| receipt.cost > 0) {
        let _ = store.execute(StoreRequest::Refund { key_ref: place.clone(), charge, cost }).await;
    }
    Some(receipt)
}

#[cfg(feature = "tokio")]
fn is_concurrency(place: &KeyRef, index: usize) -> bool {
    matches!(place.limit.quotas()[index].kind(), AlgorithmKind::Concurrency(_))
}
