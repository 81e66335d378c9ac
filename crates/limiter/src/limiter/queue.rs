//! Waiting in a queue for what is counted in a store.
//!
//! In a store nobody can tell who came first of all: those of one process stand in a line, by priority and then in order,
//! and the first of them asks the store. It asks again when a permit of its own process is given back, and now and then
//! otherwise, because others give theirs back without telling.

use super::{Reservation, remote::RemoteLimiter};
use crate::{
    clock::Clock,
    store::SlotMode,
    wait::{QueueEntry, WaitError, WaitQueues, WaitUntil, Waiter},
};
use foldhash::quality::RandomState;
use std::{hash::BuildHasher, sync::Arc, time::Duration};
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// Those of this process who wait for slots in a store.
pub(super) struct StoreQueues {
    queues: WaitQueues,
    clock: Clock,
    hasher: RandomState,
}

/// The line of one key.
#[derive(Clone)]
pub(super) struct StoreQueue {
    queues: Arc<StoreQueues>,
    owner: u64,
}

/// What ended a rest.
enum WakeReason {
    Notified,
    TimedOut,
}

/// How soon the first in line asks again; twice as long each time up to the longest.
const MIN_RETRY_INTERVAL: Micros = Micros::from_millis(2);
const MAX_RETRY_INTERVAL: Micros = Micros::from_millis(100);

impl RemoteLimiter {
    pub(super) fn queue_for(&self, key: &str) -> StoreQueue {
        StoreQueue { queues: self.queues.clone(), owner: self.queues.hasher.hash_one(key) }
    }

    /// Stands in line until the store has given it all; `wanting` is the last denial, if that was for want of tokens.
    pub(super) async fn acquire_queued(
        self: &Arc<Self>,
        (key, tier): (&str, usize),
        waiter: Waiter,
        slots: SlotMode,
        denial: &mut Option<Decision>,
    ) -> Result<Reservation, WaitError> {
        let line = self.queue_for(key);
        let ticket = line.enqueue(waiter)?;
        let mut pause = MIN_RETRY_INTERVAL;
        loop {
            if ticket.is_first() {
                let reservation = self.take(key, tier, Demand::new(waiter.cost), slots).await;
                let decision = *reservation.decision();
                *denial = None;
                match decision.outcome() {
                    Outcome::Allow | Outcome::Delay(_) => return Ok(reservation),
                    Outcome::Deny(Retry::Never) => {
                        *denial = Some(decision);
                        return Err(WaitError::ExceedsLimit);
                    }
                    Outcome::Deny(Retry::After(wait)) if decision.is_fail_closed() => {
                        return Err(WaitError::StoreUnavailable(wait));
                    }
                    // Beside a rate: not before there is a token.
                    Outcome::Deny(Retry::After(wait)) => {
                        *denial = Some(decision);
                        if line.is_too_late(&ticket, wait) {
                            return Err(ticket.timeout_error());
                        }
                        pause = pause.max(wait);
                    }
                    Outcome::Deny(Retry::WhenReleased) => {}
                }
            }
            pause = match line.wait(&ticket, pause).await? {
                // The store may hear a little later than we do.
                WakeReason::Notified => MIN_RETRY_INTERVAL,
                WakeReason::TimedOut => pause.plus(pause).min(MAX_RETRY_INTERVAL),
            };
        }
    }
}

impl StoreQueues {
    pub(super) fn new(queues: WaitQueues, clock: Clock) -> Self {
        Self { queues, clock, hasher: RandomState::default() }
    }
}

impl StoreQueue {
    /// Tells the first in line that a permit was given back.
    pub(super) fn wake_first(&self) {
        self.queues.queues.wake_first(self.owner);
    }

    fn enqueue(&self, waiter: Waiter) -> Result<QueueEntry<'_>, WaitError> {
        self.queues.queues.try_enqueue(self.owner, waiter, self.queues.clock.now())
    }

    /// Whether it is over for this caller before so much time has passed.
    fn is_too_late(&self, ticket: &QueueEntry<'_>, wait: Micros) -> bool {
        ticket.effective_deadline().is_some_and(|latest| self.queues.clock.now().plus(wait) > latest)
    }

    /// Waits for the bell, but not past the deadline, nor longer than `pause` if nobody is before this caller.
    async fn wait(&self, ticket: &QueueEntry<'_>, pause: Micros) -> Result<WakeReason, WaitError> {
        let now = self.queues.clock.now();
        let latest = ticket.effective_deadline();
        if latest.is_some_and(|latest| now >= latest) {
            return Err(ticket.timeout_error());
        }
        let again = ticket.is_first().then(|| now.plus(jitter(pause)));
        let until = match (again, latest) {
            (Some(again), Some(latest)) => Some(again.min(latest)),
            (again, latest) => again.or(latest),
        };
        WaitUntil::new(&self.queues.clock, until, Some(ticket.notify())).await;
        let is_time = until.is_some_and(|until| self.queues.clock.now() >= until);
        Ok(if is_time { WakeReason::TimedOut } else { WakeReason::Notified })
    }
}

/// Somewhere in the second half, so that processes do not ask in step.
fn jitter(pause: Micros) -> Micros {
    Duration::from_micros(fastrand::u64(pause.get() / 2..=pause.get())).into()
}
