//! What was taken in memory, and borrows nothing.

use super::{Claim, SharedPermit, SharedReservation};
use crate::{
    bucket::Bucket,
    limiter::{Key, Limiter},
    memory::Hold,
    reservation::Reservation,
    wait::{Refused, Waiter},
};
use std::{pin::Pin, sync::Arc, time::Duration};
use tidegate_core::{Decision, Demand, Outcome, Retry};

/// A wait that borrows nothing, not even its key.
type Waiting<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// For futures that outlive the call that made them.
impl Limiter {
    /// Takes `cost` of `key` and accepts to wait for it up to `patience`; see [`crate::Bucket::reserve`].
    pub fn reserve_owned<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        cost: u64,
        patience: Duration,
    ) -> SharedReservation<'static> {
        let demand = Demand::within(cost, patience.into());
        self.own(cost, self.key(key).take(demand, Hold::Nothing))
    }

    /// Takes a slot of `key` that gives itself back when the permit is dropped; see [`crate::Bucket::permit`].
    pub fn permit_owned<K: Key + ?Sized>(self: &Arc<Self>, key: &K) -> SharedPermit<'static> {
        SharedPermit::new(self.own(1, self.key(key).take(Demand::now(1), Hold::Permit)), None)
    }

    /// Takes `cost` of `key` if it can be had within `timeout`, and waits for it; see [`crate::Bucket::try_acquire`]. What
    /// was taken is given back unless it is kept.
    pub fn acquire_owned<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        cost: u64,
        timeout: Duration,
    ) -> Waiting<SharedReservation<'static>> {
        let (limiter, owner) = (self.clone(), self.key(key).owner());
        Box::pin(async move {
            let taken = Bucket::of_key(&limiter, owner).await_turn(cost, Some(timeout)).await;
            limiter.own_or_deny(cost, taken)
        })
    }

    /// The same, blocking.
    pub fn acquire_owned_blocking<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        cost: u64,
        timeout: Duration,
    ) -> SharedReservation<'static> {
        self.own_or_deny(cost, self.key(key).block_for_turn(cost, Some(timeout)))
    }

    /// Stands in line for slots of `key`; see [`crate::Bucket::permit_in_line`].
    pub fn permit_in_line_owned<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        waiter: Waiter,
    ) -> Waiting<Result<SharedPermit<'static>, Refused>> {
        let (limiter, owner) = (self.clone(), self.key(key).owner());
        Box::pin(async move {
            let reservation = Bucket::of_key(&limiter, owner).slots_in_line(waiter).await?;
            Ok(SharedPermit::new(limiter.own(waiter.cost, reservation), None))
        })
    }

    /// The same, blocking.
    pub fn permit_in_line_owned_blocking<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        waiter: Waiter,
    ) -> Result<SharedPermit<'static>, Refused> {
        let reservation = self.key(key).slots_in_line_blocking(waiter)?;
        Ok(SharedPermit::new(self.own(waiter.cost, reservation), None))
    }

    /// Stands in line for slots of `key`, and for the tokens beside them where there are both; see
    /// [`crate::SharedLimiter::claim_in_line_owned`].
    pub fn claim_in_line_owned<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        waiter: Waiter,
    ) -> Waiting<Result<Claim, Refused>> {
        let (limiter, owner) = (self.clone(), self.key(key).owner());
        Box::pin(async move {
            let bucket = Bucket::of_key(&limiter, owner);
            let refused = match bucket.slots_in_line(waiter).await {
                Ok(reservation) => return Ok(Claim::of(limiter.own(waiter.cost, reservation), None)),
                Err(refused @ Refused::Full) => return Err(refused),
                Err(refused) => refused,
            };
            let look = bucket.peek(waiter.cost);
            match look.outcome() {
                Outcome::Deny(Retry::After(_) | Retry::Never) => Ok(Claim::denied(look)),
                _ => Err(refused),
            }
        })
    }

    fn own_or_deny(
        self: &Arc<Self>,
        cost: u64,
        taken: Result<Reservation<'_>, Decision>,
    ) -> SharedReservation<'static> {
        taken.map_or_else(SharedReservation::settled, |reservation| self.own(cost, reservation))
    }

    fn own(self: &Arc<Self>, cost: u64, reservation: Reservation<'_>) -> SharedReservation<'static> {
        let owner = reservation.bucket().owner();
        SharedReservation::of_local(self.clone(), owner, reservation.into_parts(), cost)
    }
}
