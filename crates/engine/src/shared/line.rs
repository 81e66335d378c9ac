//! Standing in line for a slot, in memory or in a store that a fleet shares.
//!
//! In a store nobody can tell who came first of all: those of one process stand in a line, by priority and then in order,
//! and the first of them asks the store. It asks again when a permit of its own process is given back, and now and then
//! otherwise, because others give theirs back without telling.

use super::{Claim, FIRST, Home, Remote, SharedLimiter, SharedPermit, SharedReservation};
use crate::{
    clock::Clock,
    store::Slots,
    wait::{Lines, Pause, Refused, Ticket, Waiter},
};
use foldhash::quality::RandomState;
use std::{hash::BuildHasher, sync::Arc, time::Duration};
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// Those of this process who wait for slots in a store.
pub(super) struct Queue {
    lines: Lines,
    clock: Clock,
    hasher: RandomState,
}

/// The line of one key.
#[derive(Clone)]
pub(super) struct Line {
    queue: Arc<Queue>,
    owner: u64,
}

/// What ended a rest.
enum Woken {
    ByBell,
    ByTimer,
}

/// How soon the first in line asks again; twice as long each time up to the longest.
const SHORTEST_PAUSE: Micros = Micros::from_millis(2);
const LONGEST_PAUSE: Micros = Micros::from_millis(100);

impl SharedLimiter {
    /// Stands in line for slots that are held until the permit is dropped; see [`crate::Bucket::permit_in_line`]. In a
    /// store the line is that of this process: between processes nobody knows who came first. Places in line are those of
    /// [`crate::LimiterBuilder::waiting_places`], set by [`crate::SharedLimiterBuilder::memory`].
    pub async fn permit_in_line(&self, key: &str, waiter: Waiter) -> Result<SharedPermit<'_>, Refused> {
        match &self.home {
            Home::Memory(limiter) => {
                let reservation = limiter.key(key).slots_in_line(waiter).await?;
                Ok(SharedPermit::new(SharedReservation::of_memory(reservation), None))
            }
            Home::Store(remote) => self.permit_in_store(remote, key, waiter).await,
        }
    }

    /// The same, with a permit that borrows nothing.
    pub async fn permit_in_line_owned(
        &self,
        key: &str,
        waiter: Waiter,
    ) -> Result<SharedPermit<'static>, Refused> {
        match &self.home {
            Home::Memory(limiter) => limiter.permit_in_line_owned(key, waiter).await,
            Home::Store(remote) => self.permit_in_store(remote, key, waiter).await,
        }
    }

    /// Stands in line for slots, and for the tokens beside them where the limiter counts both: they are settled and given
    /// back apart. Whoever leaves before has taken neither. If it is for want of tokens that the turn does not come in
    /// time, the claim is denied and says when it would.
    pub async fn claim_in_line_owned(&self, key: &str, waiter: Waiter) -> Result<Claim, Refused> {
        let remote = match &self.home {
            Home::Memory(limiter) => return limiter.claim_in_line_owned(key, waiter).await,
            Home::Store(remote) => remote,
        };
        let mut wanting = None;
        match self.stand_in_store(remote, key, waiter, &mut wanting).await {
            Ok(reservation) => Ok(Claim::of(reservation, Some((remote, key)))),
            Err(refused) => wanting.map(Claim::denied).ok_or(refused),
        }
    }

    async fn permit_in_store(
        &self,
        remote: &Remote,
        key: &str,
        waiter: Waiter,
    ) -> Result<SharedPermit<'static>, Refused> {
        let reservation = self.stand_in_store(remote, key, waiter, &mut None).await?;
        Ok(SharedPermit::new(reservation, Some(remote.line(key))))
    }

    /// Stands in line until the store has given it all; `wanting` is the last denial, if that was for want of tokens.
    async fn stand_in_store(
        &self,
        remote: &Remote,
        key: &str,
        waiter: Waiter,
        wanting: &mut Option<Decision>,
    ) -> Result<SharedReservation<'static>, Refused> {
        let line = remote.line(key);
        let ticket = line.enter(waiter)?;
        let mut pause = SHORTEST_PAUSE;
        loop {
            if ticket.is_first() {
                let reservation =
                    self.take_in_store(remote, key, FIRST, Demand::now(waiter.cost), Slots::Take).await;
                let decision = *reservation.decision();
                *wanting = None;
                match decision.outcome() {
                    Outcome::Allow | Outcome::Delay(_) => return Ok(reservation),
                    Outcome::Deny(Retry::Never) => {
                        *wanting = Some(decision);
                        return Err(Refused::Never);
                    }
                    Outcome::Deny(Retry::After(wait)) if decision.is_closed() => {
                        return Err(Refused::StoreAway(wait));
                    }
                    // Beside a rate: not before there is a token.
                    Outcome::Deny(Retry::After(wait)) => {
                        *wanting = Some(decision);
                        if line.is_too_late(&ticket, wait) {
                            return Err(ticket.too_late());
                        }
                        pause = pause.max(wait);
                    }
                    Outcome::Deny(Retry::WhenReleased) => {}
                }
            }
            pause = match line.rest(&ticket, pause).await? {
                // The store may hear a little later than we do.
                Woken::ByBell => SHORTEST_PAUSE,
                Woken::ByTimer => pause.plus(pause).min(LONGEST_PAUSE),
            };
        }
    }
}

impl Queue {
    pub(super) fn new(lines: Lines, clock: Clock) -> Self {
        Self { lines, clock, hasher: RandomState::default() }
    }
}

impl Remote {
    pub(super) fn line(&self, key: &str) -> Line {
        Line { queue: self.queue.clone(), owner: self.queue.hasher.hash_one(key) }
    }
}

impl Line {
    /// Tells the first in line that a permit was given back.
    pub(super) fn wake_first(&self) {
        self.queue.lines.wake_first(self.owner);
    }

    fn enter(&self, waiter: Waiter) -> Result<Ticket<'_>, Refused> {
        self.queue.lines.enter(self.owner, waiter, self.queue.clock.now())
    }

    /// Whether it is over for this caller before so much time has passed.
    fn is_too_late(&self, ticket: &Ticket<'_>, wait: Micros) -> bool {
        ticket.latest().is_some_and(|latest| self.queue.clock.now().plus(wait) > latest)
    }

    /// Waits for the bell, but not past the deadline, nor longer than `pause` if nobody is before this caller.
    async fn rest(&self, ticket: &Ticket<'_>, pause: Micros) -> Result<Woken, Refused> {
        let now = self.queue.clock.now();
        let latest = ticket.latest();
        if latest.is_some_and(|latest| now >= latest) {
            return Err(ticket.too_late());
        }
        let again = ticket.is_first().then(|| now.plus(jittered(pause)));
        let until = match (again, latest) {
            (Some(again), Some(latest)) => Some(again.min(latest)),
            (again, latest) => again.or(latest),
        };
        Pause::until(&self.queue.clock, until, Some(ticket.bell())).await;
        let is_time = until.is_some_and(|until| self.queue.clock.now() >= until);
        Ok(if is_time { Woken::ByTimer } else { Woken::ByBell })
    }
}

/// Somewhere in the second half, so that processes do not ask in step.
fn jittered(pause: Micros) -> Micros {
    Duration::from_micros(fastrand::u64(pause.get() / 2..=pause.get())).into()
}
