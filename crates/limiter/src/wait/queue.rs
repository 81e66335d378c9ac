//! Lines of callers that wait for their turn, one line for each key, with a bounded number of places in all.

use crate::sync::{Mutex, MutexGuard, lock};
use std::{
    collections::{BTreeMap, HashMap},
    error, fmt,
    sync::Arc,
    task::Waker,
    time::Duration,
};
use tidegate_core::Micros;

/// A caller that stands in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// What it wants to take.
    pub cost: u64,
    /// Who goes first.
    pub priority: WaitPriority,
    /// How long it is willing to wait; `None` for as long as it takes.
    pub deadline: Option<Duration>,
}

impl Waiter {
    /// A caller that wants `cost`, has no priority and waits for as long as it takes.
    pub const fn new(cost: u64) -> Self {
        Self { cost, priority: WaitPriority(0), deadline: None }
    }

    /// The same caller, with a priority.
    #[must_use]
    pub const fn priority(self, priority: WaitPriority) -> Self {
        Self { priority, ..self }
    }

    /// The same caller, with a deadline from now.
    #[must_use]
    pub const fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }
}

/// A class of callers: the higher goes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitPriority(pub u8);

/// Why a caller left the line with empty hands. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitError {
    /// Every place in the line is taken.
    QueueFull,
    /// Its turn would come after its deadline.
    DeadlineExceeded,
    /// It stood in line for longer than the line allows.
    Expired,
    /// It wants more than is ever granted.
    ExceedsLimit,
    /// What it waits for is counted in a store that is away, and nobody is to pass without it; worth asking again after
    /// this time.
    StoreUnavailable(Micros),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::StoreUnavailable(wait) => {
                return write!(f, "the store that counts is away, try again in {}", wait.rounded());
            }
            Self::QueueFull => "every place in the line is taken",
            Self::DeadlineExceeded => "the turn would come after the deadline",
            Self::Expired => "stood in line for longer than the line allows",
            Self::ExceedsLimit => "wants more than is ever granted",
        })
    }
}

impl error::Error for WaitError {}

/// How callers wait for tokens of a limiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitPolicy {
    /// Each with a reservation of its own, as in Guava.
    Reserve,
    /// In line, where only the first holds one.
    Queue,
}

/// All lines of a limiter.
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
    /// Who holds a reservation, and must give it back before another may.
    holder: Option<QueueRank>,
}

/// A caller in a line.
#[derive(Debug)]
struct QueuedWaiter {
    notify: Arc<Notify>,
    cost: u64,
}

/// Lower goes first: high priority, then early arrival.
type QueueRank = (std::cmp::Reverse<WaitPriority>, u64);

impl WaitQueue {
    fn first(&self) -> Option<(&QueueRank, &QueuedWaiter)> {
        self.waiters.first_key_value()
    }

    fn first_notify(&self) -> Option<Arc<Notify>> {
        self.first().map(|(_, place)| place.notify.clone())
    }
}

impl WaitQueues {
    pub(crate) fn new(manner: WaitPolicy, max_waiters: usize, ttl: Micros) -> Self {
        Self { policy: manner, max_waiters, ttl, state: Mutex::default() }
    }

    pub(crate) fn policy(&self) -> WaitPolicy {
        self.policy
    }

    /// Takes a place at the end of a line, if there is one left.
    pub(crate) fn try_enqueue(
        &self,
        owner: u64,
        waiter: Waiter,
        now: Micros,
    ) -> Result<QueueEntry<'_>, WaitError> {
        let waiting = self.lock_state();
        if waiting.waiters >= self.max_waiters {
            return Err(WaitError::QueueFull);
        }
        let expiry = (self.ttl < Micros::MAX).then(|| now.plus(self.ttl));
        Ok(self.insert(waiting, owner, waiter, now, expiry))
    }

    /// Takes a place at the end of a line, however long it is: for callers that agreed to wait.
    pub(crate) fn enqueue(&self, owner: u64, waiter: Waiter, now: Micros) -> QueueEntry<'_> {
        self.insert(self.lock_state(), owner, waiter, now, None)
    }

    fn insert(
        &self,
        mut waiting: MutexGuard<'_, QueuesState>,
        owner: u64,
        waiter: Waiter,
        now: Micros,
        expiry: Option<Micros>,
    ) -> QueueEntry<'_> {
        waiting.waiters += 1;
        waiting.next_id += 1;
        let rank = (std::cmp::Reverse(waiter.priority), waiting.next_id);
        let bell = Arc::new(Notify::default());
        let line = waiting.queues.entry(owner).or_default();
        // Whoever was first and is overtaken must hear of it.
        let overtaken =
            line.first().filter(|(first, _)| rank < **first).map(|(_, place)| place.notify.clone());
        line.waiters.insert(rank, QueuedWaiter { notify: bell.clone(), cost: waiter.cost });
        // Not under the lock: a waker may run whatever it likes.
        drop(waiting);
        overtaken.iter().for_each(|bell| bell.notify());
        let deadline = waiter.deadline.map(|deadline| now.plus(deadline.into()));
        QueueEntry { queues: self, owner, rank, notify: bell, cost: waiter.cost, deadline, expiry }
    }

    /// Tells the first in line that something may have changed.
    pub(crate) fn wake_first(&self, owner: u64) {
        let first = self.lock_state().queues.get(&owner).and_then(WaitQueue::first_notify);
        first.iter().for_each(|bell| bell.notify());
    }

    /// Tells the first in every line that the quota has changed.
    pub(crate) fn wake_all_first(&self) {
        let bells: Vec<_> = self.lock_state().queues.values().filter_map(WaitQueue::first_notify).collect();
        bells.iter().for_each(|bell| bell.notify());
    }

    fn lock_state(&self) -> MutexGuard<'_, QueuesState> {
        lock(&self.state)
    }
}

/// A place in a line; dropping it leaves the line.
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

    /// What those before this caller want to take.
    pub(crate) fn costs_before(&self) -> Vec<u64> {
        let waiting = self.queues.lock_state();
        let Some(line) = waiting.queues.get(&self.owner) else { return Vec::new() };
        // The one that is served holds its tokens already.
        let before = line.waiters.range(..self.rank).filter(|(rank, _)| Some(**rank) != line.holder);
        before.map(|(_, place)| place.cost).collect()
    }

    /// Whether nobody is before this caller.
    pub(crate) fn is_first(&self) -> bool {
        let waiting = self.queues.lock_state();
        let first = waiting.queues.get(&self.owner).and_then(WaitQueue::first);
        first.is_some_and(|(rank, _)| *rank == self.rank)
    }

    /// Whether it is this caller's turn to hold a reservation.
    pub(crate) fn try_claim(&self) -> bool {
        let mut waiting = self.queues.lock_state();
        let Some(line) = waiting.queues.get_mut(&self.owner) else { return false };
        let is_first = line.first().is_some_and(|(rank, _)| *rank == self.rank);
        let is_free = line.holder.is_none_or(|served| served == self.rank);
        if is_first && is_free {
            line.holder = Some(self.rank);
        }
        is_first && is_free
    }

    /// Lets the first in line be served: this caller holds nothing any more.
    pub(crate) fn release_claim(&self) {
        let mut waiting = self.queues.lock_state();
        if let Some(line) = waiting.queues.get_mut(&self.owner)
            && line.holder == Some(self.rank)
        {
            line.holder = None;
            let first = line.first_notify();
            drop(waiting);
            first.iter().for_each(|bell| bell.notify());
        }
    }

    /// When it is too late for this caller.
    pub(crate) fn effective_deadline(&self) -> Option<Micros> {
        match (self.deadline, self.expiry) {
            (Some(deadline), Some(expiry)) => Some(deadline.min(expiry)),
            (deadline, expiry) => deadline.or(expiry),
        }
    }

    /// Why it is too late, once it is.
    pub(crate) fn check_deadline(&self, now: Micros) -> Option<WaitError> {
        self.effective_deadline().filter(|latest| now > *latest).map(|_| self.timeout_error())
    }

    /// Which of its ends comes first.
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
        let mut waiting = self.queues.lock_state();
        waiting.waiters -= 1;
        if let Some(line) = waiting.queues.get_mut(&self.owner) {
            line.waiters.remove(&self.rank);
            line.holder = line.holder.filter(|served| *served != self.rank);
            if line.waiters.is_empty() {
                waiting.queues.remove(&self.owner);
            }
        }
        drop(waiting);
        self.queues.wake_first(self.owner);
    }
}

/// Wakes a caller that waits; remembers that it rang if nobody was listening.
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
    /// Wakes the caller that waits.
    pub fn notify(&self) {
        let before = std::mem::replace(&mut *lock(&self.state), NotifyState::Notified);
        if let NotifyState::Waiting(waker) = before {
            waker.wake();
        }
    }

    /// Whether it rang since the last time; if not, `waker` is woken when it does.
    pub fn register(&self, waker: &Waker) -> bool {
        let mut state = lock(&self.state);
        let rang = matches!(*state, NotifyState::Notified);
        *state = if rang { NotifyState::Idle } else { NotifyState::Waiting(waker.clone()) };
        rang
    }
}
