//! Wait queues for tokens and slots in a store.
//!
//! There is no global order of arrival across processes: the callers of one process wait in a queue, by priority and then
//! in order, and the first of them calls the store. It retries when a permit of its own process is released, and
//! periodically, because releases in other processes send no notification.

use super::{Reservation, remote::RemoteLimiter};
use crate::{
    clock::Clock,
    store::PermitMode,
    wait::{QueueEntry, WaitError, WaitQueues, WaitUntil, Waiter},
};
use foldhash::quality::RandomState;
use std::{hash::BuildHasher, sync::Arc, time::Duration};
use tidegate_core::{Decision, Demand, Micros, Outcome, Retry};

/// The callers of this process that wait for a store.
pub(super) struct StoreQueues {
    queues: WaitQueues,
    clock: Clock,
    hasher: RandomState,
}

/// The queue of one key.
#[derive(Clone)]
pub(super) struct StoreQueue {
    queues: Arc<StoreQueues>,
    owner: u64,
}

/// Why a wait ended.
enum WakeReason {
    Notified,
    TimedOut,
}

/// The interval of retries of the first waiter; it doubles up to the maximum.
const MIN_RETRY_INTERVAL: Micros = Micros::from_millis(2);
const MAX_RETRY_INTERVAL: Micros = Micros::from_millis(100);

impl RemoteLimiter {
    pub(super) fn queue_for(&self, key: &str) -> StoreQueue {
        StoreQueue { queues: self.queues.clone(), owner: self.queues.hasher.hash_one(key) }
    }

    /// Waits in the queue until the store grants the cost; `denial` is the last denial, if it was for lack of tokens.
    pub(super) async fn acquire_queued(
        self: &Arc<Self>,
        (key, tier): (&str, usize),
        waiter: Waiter,
        slots: PermitMode,
        denial: &mut Option<Decision>,
    ) -> Result<Reservation, WaitError> {
        let queue = self.queue_for(key);
        let entry = queue.enqueue(waiter)?;
        let mut pause = MIN_RETRY_INTERVAL;
        loop {
            if entry.is_first() {
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
                    // A rate denied: retry when its next token is available.
                    Outcome::Deny(Retry::After(wait)) => {
                        *denial = Some(decision);
                        if queue.is_too_late(&entry, wait) {
                            return Err(entry.timeout_error());
                        }
                        pause = pause.max(wait);
                    }
                    Outcome::Deny(Retry::WhenReleased) => {}
                }
            }
            pause = match queue.wait(&entry, pause).await? {
                // The release may reach the store a little later.
                WakeReason::Notified => MIN_RETRY_INTERVAL,
                WakeReason::TimedOut => pause.saturating_add(pause).min(MAX_RETRY_INTERVAL),
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
    /// Wakes the first waiter after a permit was released.
    pub(super) fn wake_first(&self) {
        self.queues.queues.wake_first(self.owner);
    }

    fn enqueue(&self, waiter: Waiter) -> Result<QueueEntry<'_>, WaitError> {
        self.queues.queues.try_enqueue(self.owner, waiter, self.queues.clock.now())
    }

    /// Whether the deadline of this waiter passes within `wait`.
    fn is_too_late(&self, entry: &QueueEntry<'_>, wait: Micros) -> bool {
        entry.effective_deadline().is_some_and(|latest| self.queues.clock.now().saturating_add(wait) > latest)
    }

    /// Waits for a notification, until the deadline at most, and for `pause` at most if this waiter is the first.
    async fn wait(&self, entry: &QueueEntry<'_>, pause: Micros) -> Result<WakeReason, WaitError> {
        let now = self.queues.clock.now();
        let latest = entry.effective_deadline();
        if latest.is_some_and(|latest| now >= latest) {
            return Err(entry.timeout_error());
        }
        let retry_at = entry.is_first().then(|| now.saturating_add(jitter(pause)));
        let until = match (retry_at, latest) {
            (Some(retry_at), Some(latest)) => Some(retry_at.min(latest)),
            (retry_at, latest) => retry_at.or(latest),
        };
        WaitUntil::new(&self.queues.clock, until, Some(entry.notify())).await;
        let has_timed_out = until.is_some_and(|until| self.queues.clock.now() >= until);
        Ok(if has_timed_out { WakeReason::TimedOut } else { WakeReason::Notified })
    }
}

/// A random value in the upper half of `pause`, so that processes do not retry in lockstep.
fn jitter(pause: Micros) -> Micros {
    Duration::from_micros(fastrand::u64(pause.get() / 2..=pause.get())).into()
}
