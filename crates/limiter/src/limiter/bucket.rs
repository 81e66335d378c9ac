//! One key of a limiter, or a direct limiter, with all its operations for tasks.

use super::LocalBackend;
#[cfg(feature = "tokio")]
use super::{CombinedReservation, LocalReservation, Permit, Reservation, remote::RemoteLimiter};
#[cfg(feature = "tokio")]
use crate::{
    memory::PermitHold,
    store::{PermitMode, StoreError},
    wait::{WaitError, Waiter},
};
use std::fmt;
#[cfg(feature = "tokio")]
use std::{sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// One bucket: of a key of a [`Limiter`](crate::Limiter), or of a [`DirectLimiter`](crate::DirectLimiter). It borrows
/// nothing, so that futures can own it.
///
/// | to | use |
/// |---|---|
/// | take tokens now, or be denied | [`check`](Self::check), [`check_with_overdraft`](Self::check_with_overdraft) |
/// | check without taking | [`peek`](Self::peek) |
/// | take the available tokens | [`take_up_to`](Self::take_up_to) |
/// | take now, settle later | [`reserve`](Self::reserve) |
/// | wait for tokens | [`acquire`](Self::acquire), [`try_acquire`](Self::try_acquire), [`acquire_queued`](Self::acquire_queued) |
/// | hold a slot during work | [`permit`](Self::permit), [`permit_queued`](Self::permit_queued) |
///
/// [`Limiter::blocking`](crate::Limiter::blocking) has the same operations for threads that can block.
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
        let tier = remote.tier_for(&key, super::FIRST_TIER);
        Self { backend: BucketBackend::Store { remote, key, tier } }
    }

    /// The same bucket under another tier of the limiter, numbered from zero; `None` if there is no such tier. An
    /// override of the key has precedence. See [`crate::LimiterBuilder::build_tiers`].
    pub fn tier(self, tier: usize) -> Option<Self> {
        match self.backend {
            BucketBackend::Local(LocalBackend::Key { memory, owner, .. }) if tier < memory.tiers() => {
                let tier = memory.tier_for(owner, tier);
                Some(Self::local(LocalBackend::Key { memory, owner, tier }))
            }
            BucketBackend::Local(_) => None,
            #[cfg(feature = "tokio")]
            BucketBackend::Store { remote, key, .. } if tier < remote.tiers() => {
                let tier = remote.tier_for(&key, tier);
                Some(Self { backend: BucketBackend::Store { remote, key, tier } })
            }
            #[cfg(feature = "tokio")]
            BucketBackend::Store { .. } => None,
        }
    }

    /// Whether the state is in memory.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.backend, BucketBackend::Local(_))
    }
}

/// Dropping a future refunds everything that it has taken.
#[cfg(feature = "tokio")]
impl Bucket {
    /// Takes `cost` now, or denies.
    pub async fn check(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(backend) => backend.bucket().check(cost),
            BucketBackend::Store { remote, key, tier: super::FIRST_TIER } => remote.check(key, cost).await,
            BucketBackend::Store { remote, key, tier } => remote.decide(key, *tier, Demand::new(cost)).await,
        }
    }

    /// Takes `cost` now, or denies, even if it exceeds the burst: it is then granted as soon as a full burst would be, and
    /// later callers wait until the overdraft is repaid.
    pub async fn check_with_overdraft(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(backend) => backend.bucket().check_with_overdraft(cost),
            BucketBackend::Store { remote, key, tier } => {
                remote.decide(key, *tier, Demand::new(cost).with_overdraft()).await
            }
        }
    }

    /// The decision that `cost` would get now. Takes nothing.
    pub async fn peek(&self, cost: u64) -> Decision {
        match &self.backend {
            BucketBackend::Local(backend) => backend.bucket().peek(cost),
            BucketBackend::Store { remote, key, tier } => remote.decide(key, *tier, Demand::peek(cost)).await,
        }
    }

    /// Takes as many tokens as are available, up to `max`, and returns their number. Zero means that none was available; the
    /// decision then contains the time of the next one.
    pub async fn take_up_to(&self, max: u64) -> (u64, Decision) {
        match &self.backend {
            BucketBackend::Local(backend) => backend.bucket().take_up_to(max),
            BucketBackend::Store { remote, key, tier } => remote.take_up_to(key, *tier, max).await,
        }
    }

    /// Takes `cost`, with a wait of up to `max_wait`. If it is granted, the tokens are charged at once, and
    /// [`Reservation::wait`] is the delay before their use. Drop the reservation to refund it, or settle it.
    pub async fn reserve(&self, cost: u64, max_wait: Duration) -> Reservation {
        let demand = Demand::with_max_wait(cost, max_wait.into());
        match &self.backend {
            BucketBackend::Local(backend) => Reservation::take(backend.clone(), demand, PermitHold::Nothing),
            BucketBackend::Store { remote, key, tier } => {
                remote.take(key, *tier, demand, PermitMode::Peek).await
            }
        }
    }

    /// Acquires a slot that is released when the permit is dropped. For concurrency quotas: other quotas of the limiter are
    /// charged and stay charged. Without a concurrency quota it is a reservation that refunds on drop the tokens that have not
    /// expired.
    ///
    /// In a store it is a lease, renewed as long as the permit lives: the slots of a crashed process are released when their
    /// lease expires.
    pub async fn permit(&self) -> Permit {
        match &self.backend {
            BucketBackend::Local(backend) => Permit::take(backend.clone()),
            BucketBackend::Store { remote, key, tier } => {
                let taken = remote.take(key, *tier, Demand::new(1), PermitMode::Acquire).await;
                Permit::from_store(taken, remote.queue_for(key))
            }
        }
    }

    /// Takes `cost` and waits for it without a limit. First come, first served.
    ///
    /// The decision is a denial only if waiting does not help: the cost exceeds the limit, or it needs a slot that another
    /// caller must release first (see [`permit_queued`](Self::permit_queued)).
    pub async fn acquire(&self, cost: u64) -> Decision {
        self.acquire_reserved(cost, None).await.keep()
    }

    /// Takes `cost` if it is available within `timeout`, and waits for it; otherwise denies at once.
    pub async fn try_acquire(&self, cost: u64, timeout: Duration) -> Decision {
        self.acquire_reserved(cost, Some(timeout)).await.keep()
    }

    /// Like [`try_acquire`](Self::try_acquire), but the charge can still be refunded. `None` waits without a limit.
    pub async fn acquire_reserved(&self, cost: u64, timeout: Option<Duration>) -> Reservation {
        let (remote, key, tier) = match &self.backend {
            BucketBackend::Local(backend) => {
                let taken =
                    backend.bucket().acquire_async(cost, timeout).await.map(LocalReservation::into_parts);
                return Reservation::from_result(backend.clone(), cost, taken);
            }
            BucketBackend::Store { remote, key, tier } => (remote, key, *tier),
        };
        let demand = Demand::with_max_wait(cost, timeout.map_or(Micros::MAX, Micros::from));
        loop {
            let reservation = remote.take(key, tier, demand, PermitMode::Peek).await;
            match reservation.decision().outcome() {
                // The quota's own bounded queue is full: retry later.
                Outcome::Deny(Retry::After(wait)) if timeout.is_none() => remote.sleep(wait).await,
                Outcome::Deny(_) => return reservation,
                Outcome::Allow | Outcome::Delay(_) => {
                    reservation.ready().await;
                    return reservation;
                }
            }
        }
    }

    /// Waits in the queue of the key for tokens: by priority, then first come, first served. The number of waiters is bounded
    /// ([`crate::LimiterBuilder::max_waiters`]). With a store the queue is local to this process: there is no order between
    /// processes.
    pub async fn acquire_queued(&self, waiter: Waiter) -> Result<Decision, WaitError> {
        match &self.backend {
            BucketBackend::Local(backend) => {
                let taken = backend.bucket().queue(waiter, PermitHold::Nothing).await?;
                Ok(taken.into_parts().0)
            }
            BucketBackend::Store { remote, key, tier } => {
                let taken = remote.acquire_queued((key, *tier), waiter, PermitMode::Peek, &mut None).await?;
                Ok(taken.keep())
            }
        }
    }

    /// Waits in the queue of the key for as many slots as the waiter costs. A call of [`permit`](Self::permit) bypasses the
    /// queue and may be served first; a [`crate::Semaphore`] serves its queue first.
    pub async fn permit_queued(&self, waiter: Waiter) -> Result<Permit, WaitError> {
        match &self.backend {
            BucketBackend::Local(backend) => {
                let taken = backend.bucket().queue(waiter, PermitHold::Permit).await?.into_parts();
                Ok(Permit::from_reservation(Reservation::from_charge(backend.clone(), waiter.cost, taken)))
            }
            BucketBackend::Store { remote, key, tier } => {
                let taken =
                    remote.acquire_queued((key, *tier), waiter, PermitMode::Acquire, &mut None).await?;
                Ok(Permit::from_store(taken, remote.queue_for(key)))
            }
        }
    }

    /// Waits in the queue of the key for slots, and for tokens if the limiter counts both; they are settled and released
    /// separately. A cancelled caller is charged neither. If the tokens are not available in time, the result is denied and
    /// contains the time of the next one.
    pub async fn reserve_queued(&self, waiter: Waiter) -> Result<CombinedReservation, WaitError> {
        match &self.backend {
            BucketBackend::Local(backend) => {
                let bucket = backend.bucket();
                let error = match bucket.queue(waiter, PermitHold::Permit).await {
                    Ok(taken) => {
                        let taken =
                            Reservation::from_charge(backend.clone(), waiter.cost, taken.into_parts());
                        return Ok(CombinedReservation::from_reservation(taken, None));
                    }
                    Err(error @ WaitError::QueueFull) => return Err(error),
                    Err(error) => error,
                };
                let decision = bucket.peek(waiter.cost);
                match decision.outcome() {
                    Outcome::Deny(Retry::After(_) | Retry::Never) => {
                        Ok(CombinedReservation::denied(decision))
                    }
                    _ => Err(error),
                }
            }
            BucketBackend::Store { remote, key, tier } => {
                let mut denial = None;
                match remote.acquire_queued((key, *tier), waiter, PermitMode::Acquire, &mut denial).await {
                    Ok(taken) => {
                        Ok(CombinedReservation::from_reservation(taken, Some(remote.queue_for(key))))
                    }
                    Err(error) => denial.map(CombinedReservation::denied).ok_or(error),
                }
            }
        }
    }

    /// Resets the key to its initial state. Its outstanding reservations refund nothing afterwards. In memory, a key without a
    /// cell of its own (see [`crate::Overflow`]) is not reset.
    pub async fn reset(&self) -> Result<(), StoreError> {
        match &self.backend {
            BucketBackend::Local(backend) => {
                backend.bucket().reset();
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
