//! Permits: slots that are released on drop.

use super::{LocalBackend, Reservation};
#[cfg(feature = "tokio")]
use super::{
    queue::StoreQueue,
    remote::{merge_decisions, single_decision},
    reservation::{LocalCharge, ReservedCharge, StoreReceipt},
};
use crate::memory::PermitHold;
#[cfg(feature = "tokio")]
use crate::store::{KeyRef, PermitMode, Store, StoreCheck, StoreReply, StoreRequest};
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

/// A slot that is released on drop, also by a panic or a cancelled future. In a store it is a lease, renewed until then.
#[must_use = "dropping a permit releases its slot"]
pub struct Permit {
    state: PermitState,
}

enum PermitState {
    /// A slot in memory, without other quotas.
    Slot(SlotPermit),
    /// A slot with other quotas, or tokens, or nothing.
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
        self.backend.bucket().release_permit();
    }
}

impl Permit {
    /// Acquires a slot in memory.
    #[inline]
    pub(super) fn take(backend: LocalBackend) -> Self {
        let slot = backend.bucket().try_acquire_permit();
        match slot {
            Some(decision) => Self { state: PermitState::Slot(SlotPermit { decision, backend }) },
            None => Self::from_reservation(Reservation::take(backend, Demand::new(1), PermitHold::Permit)),
        }
    }

    /// Wraps a reservation in memory.
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

    /// Whether the slot has been lost: the store could not be reached to renew the lease in time, and another caller may hold
    /// the slot. It is reacquired as soon as one is free.
    pub fn is_lost(&self) -> bool {
        match &self.state {
            PermitState::Slot(_) | PermitState::Reservation(_) => false,
            #[cfg(feature = "tokio")]
            PermitState::Store(lease) => lease.is_lost(),
        }
    }

    /// Whether the slot is in a store.
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
    /// The callers of this process that wait for the slot.
    queue: StoreQueue,
}

/// Renews a lease in the background.
#[cfg(feature = "tokio")]
struct LeaseRenewer {
    task: JoinHandle<()>,
    /// The latest receipt; `None` while the lease is lost.
    latest_receipt: Arc<Mutex<Option<Receipt>>>,
}

/// The number of renewals within the term of a lease.
#[cfg(feature = "tokio")]
const RENEWALS_PER_LEASE: u32 = 3;

#[cfg(feature = "tokio")]
impl Permit {
    /// Wraps a reservation in a store, or in memory during an outage.
    pub(super) fn from_store(mut reservation: Reservation, queue: StoreQueue) -> Self {
        let renewer = match &mut reservation.charge {
            ReservedCharge::Store(receipt) => {
                receipt.keep_tokens();
                receipt.start_renewal()
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
        let Some(LeaseRenewer { task, latest_receipt: latest }) = self.renewer.take() else { return };
        task.abort();
        let latest = *latest.lock().unwrap_or_else(PoisonError::into_inner);
        let ReservedCharge::Store(receipt) = &mut self.reservation.charge else { return };
        for slot in receipt.charge.receipts.iter_mut().filter(|slot| slot.cost > 0) {
            // A lost slot is not released: another caller may hold it.
            *slot = latest.unwrap_or_default();
        }
    }
}

#[cfg(feature = "tokio")]
impl StoreReceipt {
    /// Marks the tokens as spent: a permit releases only its slot.
    fn keep_tokens(&mut self) {
        let key_ref = &self.key_ref;
        if !key_ref.quota_indices().any(|index| key_ref.limit.quotas()[index].is_concurrency()) {
            return;
        }
        for (index, receipt) in key_ref.quota_indices().zip(&mut self.charge.receipts) {
            if !key_ref.limit.quotas()[index].is_concurrency() {
                *receipt = Receipt::default();
            }
        }
        let (tokens, slots) = self.local.take().map_or((None, None), LocalCharge::split);
        tokens.into_iter().for_each(LocalCharge::keep);
        self.local = slots;
    }

    fn start_renewal(&self) -> Option<LeaseRenewer> {
        // Only the concurrency quota has a lease to renew.
        let (receipt, lease) = self.key_ref.quota_indices().zip(&self.charge.receipts).find_map(
            |(index, receipt)| match self.key_ref.limit.quotas()[index].kind() {
                AlgorithmKind::Concurrency(concurrency) => concurrency.lease().map(|lease| (*receipt, lease)),
                _ => None,
            },
        )?;
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        let latest = Arc::new(Mutex::new(Some(receipt)));
        let (store, key_ref, shared) = (self.store.clone(), self.key_ref.clone(), latest.clone());
        let pause = Duration::from(lease) / RENEWALS_PER_LEASE;
        let task = runtime.spawn(async move {
            loop {
                // After an outage the store may have lost the lease: renew at once.
                let _ = tokio::time::timeout(pause, store.wait_recovered()).await;
                let current = *shared.lock().unwrap_or_else(PoisonError::into_inner);
                let renewed = match current {
                    None => None,
                    Some(receipt) => {
                        let renew = StoreRequest::Renew { key_ref: key_ref.clone(), receipt };
                        match store.execute(renew).await {
                            Ok(StoreReply::Renewed(renewed)) => renewed,
                            Ok(_) | Err(_) => continue,
                        }
                    }
                };
                let latest = match renewed {
                    Some(receipt) => Some(receipt),
                    None => reacquire(&store, &key_ref, receipt.cost).await,
                };
                *shared.lock().unwrap_or_else(PoisonError::into_inner) = latest;
            }
        });
        Some(LeaseRenewer { task, latest_receipt: latest })
    }
}

/// Acquires a slot in place of an expired lease, if one is free. Refunds the tokens, which were charged before.
#[cfg(feature = "tokio")]
async fn reacquire(store: &Arc<dyn Store>, key_ref: &KeyRef, cost: u64) -> Option<Receipt> {
    let (demand, slots) = (Demand::new(cost), PermitMode::Acquire);
    let check = StoreCheck { key_ref: key_ref.clone(), demand, permit_mode: slots, receipt: true };
    let decision = store.execute(StoreRequest::Decide(vec![check])).await.and_then(single_decision).ok()?;
    if !merge_decisions(&decision, key_ref.tier).is_granted() {
        return None;
    }
    let mut charge = decision.charge();
    let (index, _) = key_ref
        .quota_indices()
        .enumerate()
        .find(|(_, index)| key_ref.limit.quotas()[*index].is_concurrency())?;
    let receipt = std::mem::take(charge.receipts.get_mut(index)?);
    if charge.receipts.iter().any(|receipt| receipt.cost > 0) {
        let _ = store.execute(StoreRequest::Refund { key_ref: key_ref.clone(), charge, cost }).await;
    }
    Some(receipt)
}
