//! A slot that gives itself back.

use super::{LocalPlace, Reservation};
#[cfg(feature = "tokio")]
use super::{
    line::Line,
    remote::{fold, only},
    reservation::{Deposit, Local, Taken},
};
use crate::memory::Hold;
#[cfg(feature = "tokio")]
use crate::store::{Inquiry, Place, Reply, Request, Slots, Store};
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
    held: Held,
}

enum Held {
    /// A slot in memory and nothing else.
    Slot(HeldSlot),
    /// A slot beside other quotas, or tokens, or nothing.
    Reservation(Reservation),
    #[cfg(feature = "tokio")]
    Store(Box<HeldLease>),
}

struct HeldSlot {
    decision: Decision,
    place: LocalPlace,
}

impl Drop for HeldSlot {
    #[inline]
    fn drop(&mut self) {
        self.place.bucket().release_slot();
    }
}

impl Permit {
    /// Takes a slot in memory.
    #[inline]
    pub(super) fn take(place: LocalPlace) -> Self {
        let slot = place.bucket().try_take_slot();
        match slot {
            Some(decision) => Self { held: Held::Slot(HeldSlot { decision, place }) },
            None => Self::of(Reservation::take(place, Demand::new(1), Hold::Permit)),
        }
    }

    /// What was taken in memory.
    pub(super) fn of(reservation: Reservation) -> Self {
        Self { held: Held::Reservation(reservation) }
    }

    /// Whether the slot was granted.
    pub fn decision(&self) -> &Decision {
        match &self.held {
            Held::Slot(slot) => &slot.decision,
            Held::Reservation(reservation) => reservation.decision(),
            #[cfg(feature = "tokio")]
            Held::Store(lease) => lease.reservation.decision(),
        }
    }

    /// Whether the slot has been lost: the store could not be reached to renew it in time, and another may have it. It is
    /// taken again as soon as there is one.
    pub fn is_lost(&self) -> bool {
        match &self.held {
            Held::Slot(_) | Held::Reservation(_) => false,
            #[cfg(feature = "tokio")]
            Held::Store(lease) => lease.is_lost(),
        }
    }

    /// Whether it was taken in a store.
    pub fn is_in_store(&self) -> bool {
        match &self.held {
            Held::Slot(_) | Held::Reservation(_) => false,
            #[cfg(feature = "tokio")]
            Held::Store(_) => true,
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
struct HeldLease {
    reservation: Reservation,
    renewer: Option<LeaseRenewer>,
    /// Those of this process who wait for it.
    line: Line,
}

/// Renews a lease in the background.
#[cfg(feature = "tokio")]
struct LeaseRenewer {
    task: JoinHandle<()>,
    /// The newest proof; `None` while the store does not know it.
    newest: Arc<Mutex<Option<Receipt>>>,
}

/// How often a lease is renewed before it ends.
#[cfg(feature = "tokio")]
const RENEWALS: u32 = 3;

#[cfg(feature = "tokio")]
impl Permit {
    /// What was taken in a store, or beside it while the store is unavailable.
    pub(super) fn in_store(mut reservation: Reservation, line: Line) -> Self {
        let renewer = match &mut reservation.taken {
            Taken::Store(deposit) => {
                deposit.keep_tokens();
                deposit.renew()
            }
            _ => None,
        };
        Self { held: Held::Store(Box::new(HeldLease { reservation, renewer, line })) }
    }
}

#[cfg(feature = "tokio")]
impl HeldLease {
    fn is_lost(&self) -> bool {
        let lost =
            |renewer: &LeaseRenewer| renewer.newest.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        self.renewer.as_ref().is_some_and(lost)
    }
}

#[cfg(feature = "tokio")]
impl Drop for HeldLease {
    fn drop(&mut self) {
        if self.reservation.decision().is_granted() {
            self.line.wake_first();
        }
        let Some(LeaseRenewer { task, newest }) = self.renewer.take() else { return };
        task.abort();
        let newest = *newest.lock().unwrap_or_else(PoisonError::into_inner);
        let Taken::Store(deposit) = &mut self.reservation.taken else { return };
        for receipt in deposit.charged.receipts.iter_mut().filter(|receipt| receipt.cost > 0) {
            // What was lost is not given back: another may have it.
            *receipt = newest.unwrap_or_default();
        }
    }
}

#[cfg(feature = "tokio")]
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

    fn renew(&self) -> Option<LeaseRenewer> {
        // Renewing names one quota: the only one that expires.
        let (receipt, lease) =
            self.place.quotas().zip(&self.charged.receipts).find_map(|(index, receipt)| {
                match self.place.limit.quotas()[index].kind() {
                    AlgorithmKind::Concurrency(it) => it.lease().map(|lease| (*receipt, lease)),
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
        Some(LeaseRenewer { task, newest })
    }
}

/// Takes a slot again that the store does not know any more, if there is one left; tokens beside it were charged before.
#[cfg(feature = "tokio")]
async fn register(store: &Arc<dyn Store>, place: &Place, cost: u64) -> Option<Receipt> {
    let (demand, slots) = (Demand::new(cost), Slots::Take);
    let ask = Inquiry { place: place.clone(), demand, slots, receipt: true };
    let answer = store.perform(Request::Decide(vec![ask])).await.and_then(only).ok()?;
    if !fold(&answer, place.tier).is_granted() {
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

#[cfg(feature = "tokio")]
fn is_concurrency(place: &Place, index: usize) -> bool {
    matches!(place.limit.quotas()[index].kind(), AlgorithmKind::Concurrency(_))
}
