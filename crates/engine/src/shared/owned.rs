//! What was taken in memory, and borrows nothing.

use super::{SharedPermit, SharedReservation};
use crate::{
    limiter::{Key, Limiter},
    memory::Hold,
    reservation::Reservation,
    wait::{Refused, Waiter},
};
use std::{sync::Arc, time::Duration};
use tidegate_core::Demand;

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

    /// Stands in line for slots of `key`; see [`crate::Bucket::permit_in_line`].
    pub async fn permit_in_line_owned<K: Key + ?Sized>(
        self: &Arc<Self>,
        key: &K,
        waiter: Waiter,
    ) -> Result<SharedPermit<'static>, Refused> {
        let bucket = self.key(key);
        let reservation = bucket.slots_in_line(waiter).await?;
        Ok(SharedPermit::new(self.own(waiter.cost, reservation), None))
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

    fn own(self: &Arc<Self>, cost: u64, reservation: Reservation<'_>) -> SharedReservation<'static> {
        let owner = reservation.bucket().owner();
        SharedReservation::of_local(self.clone(), owner, reservation.into_parts(), cost)
    }
}
