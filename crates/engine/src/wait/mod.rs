//! Waiting: for tokens that were reserved, and in line for those that were not.

mod line;
mod pause;

pub(crate) use line::Lines;
pub use line::{Priority, Refused, Waiter};

use crate::{
    bucket::Bucket,
    memory::Hold,
    reservation::{Permit, Reservation},
};
use line::{Ticket, Turn};
use pause::Pause;
use std::time::Duration;
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// Waiting without blocking a thread. Dropping the future gives everything back.
#[cfg(feature = "tokio")]
impl Bucket<'_> {
    /// Takes `cost` and waits for it, however long that is. The first who asked goes first.
    ///
    /// The decision says how long it was; it is a denial only if the cost can never be granted.
    pub async fn acquire(&self, cost: u64) -> Decision {
        self.go(self.take(Demand::within(cost, Micros::MAX), Hold::Nothing)).await
    }

    /// Takes `cost` if it can be had within `timeout`, and waits for it; else answers at once that it cannot.
    pub async fn try_acquire(&self, cost: u64, timeout: Duration) -> Decision {
        self.go(self.take(Demand::within(cost, timeout.into()), Hold::Nothing)).await
    }

    /// Stands in line until there is something to take: by priority, then first come, first served. The line has
    /// a bounded number of places, and nothing is taken before it is one's turn.
    pub async fn wait_in_line(&self, waiter: Waiter) -> Result<Decision, Refused> {
        self.stand_in_line(waiter, Hold::Nothing).await.map(Reservation::keep)
    }

    /// Stands in line for a slot that gives itself back when it is dropped.
    pub async fn permit_in_line(&self, waiter: Waiter) -> Result<Permit<'_>, Refused> {
        self.stand_in_line(waiter, Hold::Permit).await.map(Permit::new)
    }

    async fn go(&self, reservation: Reservation<'_>) -> Decision {
        if reservation.decision().is_granted() {
            Pause::until(self.clock(), Some(reservation.ready_at()), None).await;
        }
        reservation.keep()
    }

    async fn stand_in_line(&self, waiter: Waiter, hold: Hold) -> Result<Reservation<'_>, Refused> {
        let ticket = self.lines().enter(self.owner(), waiter, self.clock().now())?;
        loop {
            match self.turn(&ticket, hold) {
                Turn::Go(reservation) => return Ok(reservation),
                Turn::Refuse(refused) => return Err(refused),
                Turn::Wait(until) => Pause::until(self.clock(), until, Some(ticket.bell())).await,
            }
        }
    }
}

/// The same for threads.
impl<'a> Bucket<'a> {
    /// Takes `cost` and blocks until it may be used, however long that is.
    pub fn acquire_blocking(&self, cost: u64) -> Decision {
        self.go_blocking(self.take(Demand::within(cost, Micros::MAX), Hold::Nothing))
    }

    /// Takes `cost` if it can be had within `timeout`, and blocks until then; else answers at once.
    pub fn try_acquire_blocking(&self, cost: u64, timeout: Duration) -> Decision {
        self.go_blocking(self.take(Demand::within(cost, timeout.into()), Hold::Nothing))
    }

    /// Stands in line, blocking; see [`wait_in_line`](Self::wait_in_line).
    pub fn wait_in_line_blocking(&self, waiter: Waiter) -> Result<Decision, Refused> {
        self.stand_in_line_blocking(waiter, Hold::Nothing).map(Reservation::keep)
    }

    /// Stands in line for a slot, blocking; see [`permit_in_line`](Self::permit_in_line).
    pub fn permit_in_line_blocking(&self, waiter: Waiter) -> Result<Permit<'a>, Refused> {
        self.stand_in_line_blocking(waiter, Hold::Permit).map(Permit::new)
    }

    fn go_blocking(&self, reservation: Reservation<'_>) -> Decision {
        if reservation.decision().is_granted() {
            pause::block_until(self.clock(), Some(reservation.ready_at()), None);
        }
        reservation.keep()
    }

    fn stand_in_line_blocking(&self, waiter: Waiter, hold: Hold) -> Result<Reservation<'a>, Refused> {
        let ticket = self.lines().enter(self.owner(), waiter, self.clock().now())?;
        loop {
            match self.turn(&ticket, hold) {
                Turn::Go(reservation) => return Ok(reservation),
                Turn::Refuse(refused) => return Err(refused),
                Turn::Wait(until) => pause::block_until(self.clock(), until, Some(ticket.bell())),
            }
        }
    }

    /// What the holder of a ticket may do now.
    fn turn(&self, ticket: &Ticket<'_>, hold: Hold) -> Turn<'a> {
        let now = self.clock().now();
        if let Some(refused) = ticket.overdue(now) {
            return Turn::Refuse(refused);
        }
        if !ticket.is_first() {
            return Turn::Wait(ticket.latest());
        }
        let reservation = self.take(Demand::now(ticket.cost()), hold);
        match reservation.decision().outcome() {
            Outcome::Allow | Outcome::Delay(_) => Turn::Go(reservation),
            Outcome::Deny(Retry::Never) => Turn::Refuse(Refused::Never),
            Outcome::Deny(Retry::WhenReleased) => Turn::Wait(ticket.latest()),
            Outcome::Deny(Retry::After(wait)) => match ticket.latest() {
                // Nobody before us, and still too late: say so now rather than then.
                Some(latest) if now.plus(wait) > latest => Turn::Refuse(ticket.too_late()),
                _ => Turn::Wait(Some(now.plus(wait))),
            },
        }
    }
}
