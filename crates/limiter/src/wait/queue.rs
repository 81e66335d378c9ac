//! Queues of waiting callers, one per key, with a bound on the total number of waiters.

use crate::sync::{Mutex, MutexGuard, lock};
use std::{
    collections::{BTreeMap, HashMap},
    error, fmt,
    sync::Arc,
    task::Waker,
    time::Duration,
};
use tidegate_core::Micros;

/// A caller that waits in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The tokens or slots to take.
    pub cost: u64,
    /// Higher priorities are served first.
    pub priority: WaitPriority,
    /// The longest wait; `None` waits without a deadline.
    pub deadline: Option<Duration>,
}

impl Waiter {
    /// A waiter for `cost`, with priority 0 and no deadline.
    pub const fn new(cost: u64) -> Self {
        Self { cost, priority: WaitPriority(0), deadline: None }
    }

    /// Sets the priority.
    #[must_use]
    pub const fn priority(self, priority: WaitPriority) -> Self {
        Self { priority, ..self }
    }

    /// Sets the deadline, relative to the call that starts the wait.
    #[must_use]
    pub const fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }
}

/// The priority class of a waiter; higher values are served first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitPriority(pub u8);

/// Why a wait failed. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// The queue is full.
    QueueFull,
    /// The deadline passes before the tokens or slots are available.
    DeadlineExceeded,
    /// The waiter exceeded the time that the queue allows.
    Expired,
    /// The cost exceeds the limit, so no wait can succeed.
    ExceedsLimit,
    /// The store is unavailable and the limiter fails closed; retry after this time.
    StoreUnavailable(Micros),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StoreUnavailable(wait) => {
                return write!(f, "store unavailable; retry in {}", wait.rounded());
            }
            Self::QueueFull => "wait queue full",
            Self::DeadlineExceeded => "the wait would exceed the deadline",
            Self::Expired => "waited longer than the queue allows",
            Self::ExceedsLimit => "cost exceeds the limit",
        })
    }
}

impl error::Error for WaitError {}

/// How callers wait for tokens of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Every caller holds its own reservation, as in Guava.
    Reserve,
    /// Callers queue, and only the first holds a reservation.
    Queue,
}

/// All wait queues of a limiter.
#[derive(Debug)]
pub(crate) struct WaitQueues {
    policy: WaitPolicy,
    max_waiters: usize,
    ttl: Micros,
    state: Mutex<QueuesState>,
}

#[derive(Debug, Default)]
struct QueuesState {
    waiters: usize,
    next_id: u64,
    queues: HashMap<u64, WaitQueue>,
}

/// The callers that wait for one key.
#[derive(Debug, Default)]
struct WaitQueue {
    waiters: BTreeMap<QueueRank, QueuedWaiter>,
    /// The waiter that holds a reservation and must release it before another can reserve.
    holder: Option<QueueRank>,
}

/// One waiter in a queue.
#[derive(Debug)]
struct QueuedWaiter {
    notify: Arc<Notify>,
    cost: u64,
}

/// Lower ranks are served first: high priority, then early arrival.
type QueueRank = (std::cmp::Reverse<WaitPriority>, u64);

impl WaitQueue {
    fn first(&self) -> Option<(&QueueRank, &QueuedWaiter)> {
        self.waiters.first_key_value()
    }

    fn first_notify(&self) -> Option<Arc<Notify>> {
        self.first().map(|(_, waiter)| waiter.notify.clone())
    }
}

impl WaitQueues {
    pub(crate) fn new(policy: WaitPolicy, max_waiters: usize, ttl: Micros) -> Self {
        Self { policy, max_waiters, ttl, state: Mutex::default() }
    }

    pub(crate) fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// Appends a waiter to the queue of a key, unless the limiter has `max_waiters` already.
    pub(crate) fn try_enqueue(
        &self,
        owner: u64,
        waiter: Waiter,
        now: Micros,
    ) -> Result<QueueEntry<'_>, WaitError> {
        let state = self.lock_state();
        if state.waiters >= self.max_waiters {
            return Err(WaitError::QueueFull);
        }
        let expiry = (self.ttl < Micros::MAX).then(|| now.saturating_add(self.ttl));
        Ok(self.insert(state, owner, waiter, now, expiry))
    }

    /// Appends a waiter to the queue of a key, without a bound on the number of waiters.
    pub(crate) fn enqueue(&self, owner: u64, waiter: Waiter, now: Micros) -> QueueEntry<'_> {
        self.insert(self.lock_state(), owner, waiter, now, None)
    }

    fn insert(
        &self,
        mut state: MutexGuard<'_, QueuesState>,
        owner: u64,
        waiter: Waiter,
        now: Micros,
        expiry: Option<Micros>,
    ) -> QueueEntry<'_> {
        state.waiters += 1;
        state.next_id += 1;
        let rank = (std::cmp::Reverse(waiter.priority), state.next_id);
        let notify = Arc::new(Notify::default());
        let queue = state.queues.entry(owner).or_default();
        // Wake the previous first waiter, so that it releases its reservation.
        let overtaken =
            queue.first().filter(|(first, _)| rank < **first).map(|(_, queued)| queued.notify.clone());
        queue.waiters.insert(rank, QueuedWaiter { notify: notify.clone(), cost: waiter.cost });
        // Notify after unlocking: a waker can run arbitrary code.
        drop(state);
        overtaken.iter().for_each(|notify| notify.notify());
        let deadline = waiter.deadline.map(|deadline| now.saturating_add(deadline.into()));
        QueueEntry { queues: self, owner, rank, notify, cost: waiter.cost, deadline, expiry }
    }

    /// Wakes the first waiter of a key.
    pub(crate) fn wake_first(&self, owner: u64) {
        let first = self.lock_state().queues.get(&owner).and_then(WaitQueue::first_notify);
        first.iter().for_each(|notify| notify.notify());
    }

    /// Wakes the first waiter of every key, because the quota changed.
    pub(crate) fn wake_all_first(&self) {
        let notifies: Vec<_> =
            self.lock_state().queues.values().filter_map(WaitQueue::first_notify).collect();
        notifies.iter().for_each(|notify| notify.notify());
    }

    fn lock_state(&self) -> MutexGuard<'_, QueuesState> {
        lock(&self.state)
    }
}

/// A position in a queue; dropping it leaves the queue.
pub(crate) struct QueueEntry<'a> {
    queues: &'a WaitQueues,
    owner: u64,
    rank: QueueRank,
    notify: Arc<Notify>,
    cost: u64,
    deadline: Option<Micros>,
    expiry: Option<Micros>,
}

impl QueueEntry<'_> {
    pub(crate) fn cost(&self) -> u64 {
        self.cost
    }

    pub(crate) fn notify(&self) -> &Notify {
        &self.notify
    }

    /// The costs of the waiters ahead that hold no reservation yet.
    pub(crate) fn costs_before(&self) -> Vec<u64> {
        let state = self.queues.lock_state();
        let Some(queue) = state.queues.get(&self.owner) else { return Vec::new() };
        // The holder is charged already.
        let before = queue.waiters.range(..self.rank).filter(|(rank, _)| Some(**rank) != queue.holder);
        before.map(|(_, waiter)| waiter.cost).collect()
    }

    /// Whether this waiter is the first in its queue.
    pub(crate) fn is_first(&self) -> bool {
        let state = self.queues.lock_state();
        let first = state.queues.get(&self.owner).and_then(WaitQueue::first);
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }

    /// Claims the right to hold a reservation; returns whether this waiter has it.
    pub(crate) fn try_claim(&self) -> bool {
        let mut state = self.queues.lock_state();
        let Some(queue) = state.queues.get_mut(&self.owner) else { return false };
        let is_first = queue.first().is_some_and(|(rank, _)| *rank == self.rank);
        let is_free = queue.holder.is_none_or(|served| served == self.rank);
        if is_first && is_free {
            queue.holder = Some(self.rank);
        }
        is_first && is_free
    }

    /// Releases the claim and wakes the first waiter.
    pub(crate) fn release_claim(&self) {
        let mut state = self.queues.lock_state();
        if let Some(queue) = state.queues.get_mut(&self.owner)
            && queue.holder == Some(self.rank)
        {
            queue.holder = None;
            let first = queue.first_notify();
            drop(state);
            first.iter().for_each(|notify| notify.notify());
        }
    }

    /// The earlier of the deadline and the expiry.
    pub(crate) fn effective_deadline(&self) -> Option<Micros> {
        match (self.deadline, self.expiry) {
            (Some(deadline), Some(expiry)) => Some(deadline.min(expiry)),
            (deadline, expiry) => deadline.or(expiry),
        }
    }

    /// Returns the error if the deadline or the expiry has passed.
    pub(crate) fn check_deadline(&self, now: Micros) -> Option<WaitError> {
        self.effective_deadline().filter(|latest| now > *latest).map(|_| self.timeout_error())
    }

    /// The error for the earlier of the deadline and the expiry.
    pub(crate) fn timeout_error(&self) -> WaitError {
        match (self.deadline, self.expiry) {
            (Some(deadline), Some(expiry)) if expiry < deadline => WaitError::Expired,
            (None, Some(_)) => WaitError::Expired,
            _ => WaitError::DeadlineExceeded,
        }
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let mut state = self.queues.lock_state();
        state.waiters -= 1;
        if let Some(queue) = state.queues.get_mut(&self.owner) {
            queue.waiters.remove(&self.rank);
            queue.holder = queue.holder.filter(|served| *served != self.rank);
            if queue.waiters.is_empty() {
                state.queues.remove(&self.owner);
            }
        }
        drop(state);
        self.queues.wake_first(self.owner);
    }
}

/// Wakes a waiting caller. A notification without a waiter is stored for the next [`Self::register`].
#[derive(Debug, Default)]
pub struct Notify {
    state: Mutex<NotifyState>,
}

#[derive(Debug, Default)]
enum NotifyState {
    #[default]
    Idle,
    Waiting(Waker),
    Notified,
}

impl Notify {
    /// Wakes the registered waiter.
    pub fn notify(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), NotifyState::Notified);
        if let NotifyState::Waiting(waker) = before {
            waker.wake();
        }
    }

    /// Returns whether a notification arrived since the last call; otherwise registers `waker` for the next one.
    pub fn register(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let notified = matches!(*state, NotifyState::Notified);
        *state = if notified { NotifyState::Idle } else { NotifyState::Waiting(waker.clone()) };
        notified
    }
}
