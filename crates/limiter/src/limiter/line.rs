//! Waiting in a queue for what is counted in a store.
//!
//! In a store nobody can tell who came first of all: those of one process stand in a line, by priority and then in order,
//! and the first of them asks the store. It asks again when a permit of its own process is given back, and now and then
//! otherwise, because others give theirs back without telling.

use super::{Reservation, remote::Remote};
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

impl Remote {
    pub(super) fn line(&self, key: &str) -> Line {
        Line { queue: self.queue.clone(), owner: self.queue.hasher.hash_one(key) }
    }

    /// Stands in line until the store has given it all; `wanting` is the last denial, if that was for want of tokens.
    pub(super) async fn queue(
        self: &Arc<Self>,
        (key, tier): (&str, usize),
        waiter: Waiter,
        slots: Slots,
        wanting: &mut Option<Decision>,
    ) -> Result<Reservation, Refused> {
        let line = self.line(key);
        let ticket = line.enter(waiter)?;
        let mut pause = SHORTEST_PAUSE;
        loop {
            if ticket.is_first() {
                let reservation = self.take(key, tier, Demand::new(waiter.cost), slots).await;
                let decision = *reservation.decision();
                *wanting = None;
                match decision.outcome() {
                    Outcome::Allow | Outcome::Delay(_) => return Ok(reservation),
                    Outcome::Deny(Retry::Never) => {
                        *wanting = Some(decision);
                        return Err(Refused::Never);
                    }
                    Outcome::Deny(Retry::After(wait)) if decision.is_fail_closed() => {
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
