//! One key of a limiter, or a throttle, and everything that can be done with it in a task.

use super::LocalBackend;
#[cfg(feature = "tokio")]
use super::{CombinedReservation, LocalReservation, Permit, Reservation, remote::RemoteLimiter};
#[cfg(feature = "tokio")]
use crate::{
    memory::SlotHold,
    store::{SlotMode, StoreError},
    wait::{WaitError, Waiter},
};
use std::fmt;
#[cfg(feature = "tokio")]
use std::{sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// One bucket: of one key of a [`Limiter`](crate::Limiter), or of a [`DirectLimiter`](crate::DirectLimiter). It borrows nothing, so that futures
/// can own it.
///
/// | to | use |
/// |---|---|
/// | take now or not at all | [`check`](Self::check), [`check_with_overdraft`](Self::check_with_overdraft) |
/// | look without taking | [`peek`](Self::peek) |
/// | take what there is | [`take_up_to`](Self::take_up_to) |
/// | take now, settle later | [`reserve`](Self::reserve) |
/// | wait for it | [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire), [`acquire_queued`](Self::acquire_queued) |
/// | hold a slot while working | [`permit`](Self::permit), [`permit_queued`](Self::permit_queued) |
///
/// [`Limiter::blocking`](crate::Limiter::blocking) has the same for threads that can wait.
#[derive(Clone)]
pub struct Bucket {
    pub(super) backend: BucketBackend,
}

#[derive(Clone)]
pub(super) enum BucketBackend {
    Local(LocalBackend),
    #[cfg(feature = "tokio")]
    Store {
        remote: Arc<RemoteLimiter>,
        key: String,
        tier: usize,
    },
}

impl Bucket {
    pub(crate) fn local(backend: LocalBackend) -> Self {
        Self { backend: BucketBackend::Local(backend) }
    }

    #[cfg(feature = "tokio")]
    pub(super) fn from_remote(remote: Arc<RemoteLimiter>, key: String) -> Self {
        Self { backend: BucketBackend::Store { remote, key, tier: super::FIRST_TIER } }
    }

    /// The same bucket under another of the limiter's tiers, counted from zero; `None` if there is no such tier.
    /// See [`crate::LimiterBuilder::build_tiers`].
    pub fn tier(self, wanted: usize) -> Option<Self> {
        match self.backend {
            BucketBackend::Local(LocalBackend::Key { memory, owner, .. }) if wanted < memory.tiers() => {
                Some(Self::local(LocalBackend::Key { memory, owner, tier: wanted }))
            }
            BucketBackend::Local(_) => None,
            #[cfg(feature = "tokio")]
            BucketBackend::Store { remote, key, .. } if wanted < remote.tiers() => {
                Some(Self { backend: BucketBackend::Store { remote, key, tier: wanted } })
            }
            #[cfg(feature = "tokio")]
            BucketBackend::Store { .. } => None,
        }
    }

    /// Whether it is counted in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.backend, BucketBackend::Local(_))
    }
}

/// Dropping a future gives everything back that it has taken.
#[cfg(feature = "tokio")]
impl Bucket {
    /// Takes `cost`, now or not at all.
    pub async fn check(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(place) => place.bucket().check(cost),
            BucketBackend::Store { remote, key, tier: super::FIRST_TIER } => remote.check(key, cost).await,
            BucketBackend::Store { remote, key, tier } => remote.decide(key, *tier, Demand::new(cost)).await,
        }
    }

    /// Takes `cost` now or not at all, even if it is larger than the burst: it is then granted as soon as a full
    /// burst would be, and those who come later wait until the rest is repaid.
    pub async fn check_with_overdraft(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(place) => place.bucket().check_with_overdraft(cost),
            BucketBackend::Store { remote, key, tier } => {
                remote.decide(key, *tier, Demand::new(cost).with_overdraft()).await
            }
        }
    }

    /// What `cost` would get now. Takes nothing.
    pub async fn peek(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(place) => place.bucket().peek(cost),
            BucketBackend::Store { remote, key, tier } => {
                remote.decide(key, *tier, Demand::probe(cost)).await
            }
        }
    }

    /// Takes as much as there is, up to `max`, and returns how much that was. Zero means that there was nothing; the
    /// decision then says when there will be.
    pub async fn take_up_to(&self, max: u64) -> (u64, Decision) {
        match &self.backend {
            BucketBackend::Local(place) => place.bucket().take_up_to(max),
            BucketBackend::Store { remote, key, tier } => remote.take_up_to(key, *tier, max).await,
        }
    }

    /// Takes `cost` and accepts to wait for it up to `max_wait`. If it is granted, the tokens are yours from now
    /// on and the reservation says how long to wait before using them; give it back, or settle it, as you like.
    pub async fn reserve(&self, cost: u64, max_wait: Duration) -> Reservation {
        let demand = Demand::with_max_wait(cost, max_wait.into());
        match &self.backend {
            BucketBackend::Local(place) => Reservation::take(place.clone(), demand, SlotHold::Nothing),
            BucketBackend::Store { remote, key, tier } => {
                remote.take(key, *tier, demand, SlotMode::Peek).await
            }
        }
    }

    /// Takes a slot that gives itself back when the permit is dropped. For concurrency quotas: beside one, the
    /// others are charged and stay charged. Without one it is a reservation that refunds on drop what time has not
    /// given back.
    ///
    /// In a store it is a lease, which is renewed for as long as the permit lives: a process that dies gives its slots back when it
    /// expires.
    pub async fn permit(&self) -> Permit {
        match &self.backend {
            BucketBackend::Local(place) => Permit::take(place.clone()),
            BucketBackend::Store { remote, key, tier } => {
                let taken = remote.take(key, *tier, Demand::new(1), SlotMode::Acquire).await;
                Permit::from_store(taken, remote.queue_for(key))
            }
        }
    }

    /// Takes `cost` and waits for it, however long that is. The first who asked goes first.
    ///
    /// The decision is a denial only if waiting does not help: the cost can never be granted, or it is a slot that
    /// another caller must release first (see [`permit_queued`](Self::permit_queued)).
    pub async fn acquire(&self, cost: u64) -> Decision {
        self.acquire_reserved(cost, None).await.keep()
    }

    /// Takes `cost` if it can be had within `timeout`, and waits for it; else answers at once that it cannot.
    pub async fn try_acquire(&self, cost: u64, timeout: Duration) -> Decision {
        self.acquire_reserved(cost, Some(timeout)).await.keep()
    }

    /// The same without an end if `timeout` is `None`; what was taken can still be given back.
    pub async fn acquire_reserved(&self, cost: u64, timeout: Option<Duration>) -> Reservation {
        let (remote, key, tier) = match &self.backend {
            BucketBackend::Local(place) => {
                let taken =
                    place.bucket().acquire_async(cost, timeout).await.map(LocalReservation::into_parts);
                return Reservation::from_result(place.clone(), cost, taken);
            }
            BucketBackend::Store { remote, key, tier } => (remote, key, *tier),
        };
        let demand = Demand::with_max_wait(cost, timeout.map_or(Micros::MAX, Micros::from));
        loop {
            let reservation = remote.take(key, tier, demand, SlotMode::Peek).await;
            match reservation.decision().outcome() {
                // A bounded queue of the quota's own is full: there is room later.
                Outcome::Deny(Retry::After(wait)) if timeout.is_none() => remote.sleep(wait).await,
                Outcome::Deny(_) => return reservation,
                Outcome::Allow | Outcome::Delay(_) => {
                    reservation.ready().await;
                    return reservation;
                }
            }
        }
    }

    /// Waits in the queue of the key until there is something to take: by priority, then first come, first served. The queue has
    /// a bounded number of places ([`crate::LimiterBuilder::max_waiters`]). In a store the queue is that of this process: the order
    /// between processes is not known.
    pub async fn acquire_queued(&self, waiter: Waiter) -> Result<Decision, WaitError> {
        match &self.backend {
            BucketBackend::Local(place) => {
                let taken = place.bucket().queue(waiter, SlotHold::Nothing).await?;
                Ok(taken.into_parts().0)
            }
            BucketBackend::Store { remote, key, tier } => {
                let taken = remote.acquire_queued((key, *tier), waiter, SlotMode::Peek, &mut None).await?;
                Ok(taken.keep())
            }
        }
    }

    /// Waits in the queue of the key for as many slots as the waiter costs. A caller of [`permit`](Self::permit) does not wait in
    /// the queue, and may be served first; [`crate::Semaphore`] serve their queue first.
    pub async fn permit_queued(&self, waiter: Waiter) -> Result<Permit, WaitError> {
        match &self.backend {
            BucketBackend::Local(place) => {
                let taken = place.bucket().queue(waiter, SlotHold::Permit).await?.into_parts();
                Ok(Permit::from_reservation(Reservation::from_charge(place.clone(), waiter.cost, taken)))
            }
            BucketBackend::Store { remote, key, tier } => {
                let taken = remote.acquire_queued((key, *tier), waiter, SlotMode::Acquire, &mut None).await?;
                Ok(Permit::from_store(taken, remote.queue_for(key)))
            }
        }
    }

    /// Waits in the queue of the key for slots, and for the tokens beside them where the limiter counts both: they are settled and
    /// given back apart. A caller that stops waiting has taken neither. If it is for want of tokens that the turn does not come in
    /// time, the claim is denied and says when it would.
    pub async fn reserve_queued(&self, waiter: Waiter) -> Result<CombinedReservation, WaitError> {
        match &self.backend {
            BucketBackend::Local(place) => {
                let bucket = place.bucket();
                let refused = match bucket.queue(waiter, SlotHold::Permit).await {
                    Ok(taken) => {
                        let taken = Reservation::from_charge(place.clone(), waiter.cost, taken.into_parts());
                        return Ok(CombinedReservation::from_reservation(taken, None));
                    }
                    Err(refused @ WaitError::QueueFull) => return Err(refused),
                    Err(refused) => refused,
                };
                let look = bucket.peek(waiter.cost);
                match look.outcome() {
                    Outcome::Deny(Retry::After(_) | Retry::Never) => Ok(CombinedReservation::denied(look)),
                    _ => Err(refused),
                }
            }
            BucketBackend::Store { remote, key, tier } => {
                let mut denial = None;
                match remote.acquire_queued((key, *tier), waiter, SlotMode::Acquire, &mut denial).await {
                    Ok(taken) => {
                        Ok(CombinedReservation::from_reservation(taken, Some(remote.queue_for(key))))
                    }
                    Err(refused) => denial.map(CombinedReservation::denied).ok_or(refused),
                }
            }
        }
    }

    /// Forgets the key: it is as good as new. Reservations that it has outstanding then give nothing back, and in memory
    /// a key without room of its own (see [`crate::Overflow`]) stays as it is.
    pub async fn reset(&self) -> Result<(), StoreError> {
        match &self.backend {
            BucketBackend::Local(place) => {
                place.bucket().reset();
                Ok(())
            }
            BucketBackend::Store { remote, key, .. } => remote.reset(key).await,
        }
    }
}

impl fmt::Debug for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.backend {
            BucketBackend::Local(LocalBackend::Key { owner, .. }) => write!(f, "Bucket({owner:016x})"),
            BucketBackend::Local(LocalBackend::Direct(_)) => f.write_str("Bucket"),
            #[cfg(feature = "tokio")]
            BucketBackend::Store { key, .. } => write!(f, "Bucket({key})"),
        }
    }
}
