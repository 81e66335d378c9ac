//! Limits the number of waiting requests, per key and in total.

use crate::RuleKey;
use std::{
    collections::HashMap,
    fmt,
    future::{Future, poll_fn},
    hash::{BuildHasher, RandomState},
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, WaitError};

/// Limits the number of waiting requests: per key, so that one key cannot fill the queue, and in total, so
/// that many keys cannot fill the memory. Clones share state.
///
/// ```
/// use tidegate_limiter::WaitError;
/// use tidegate_rule::LimitQueue;
///
/// let queue = LimitQueue::new(1, 2);
/// let first = queue.for_key("a").enter()?;
/// assert_eq!(queue.for_key("a").enter().err(), Some(WaitError::QueueFull));
/// let second = queue.for_key("b").enter()?;
/// assert_eq!(queue.for_key("c").enter().err(), Some(WaitError::QueueFull));
/// drop(first);
/// assert!(queue.for_key("c").enter().is_ok());
/// # Ok::<(), WaitError>(())
/// ```
#[derive(Clone)]
pub struct LimitQueue {
    inner: Arc<QueueInner>,
}

struct QueueInner {
    hasher: RandomState,
    state: Mutex<QueueState>,
}

struct QueueState {
    max_per_key: usize,
    max_total: usize,
    total: usize,
    /// By the hash of the key; keys without waiters have no entry.
    per_key: HashMap<u64, usize>,
}

impl LimitQueue {
    /// Creates a queue with a maximum per key and a maximum over all keys.
    pub fn new(max_per_key: usize, max_total: usize) -> Self {
        let state = QueueState { max_per_key, max_total, total: 0, per_key: HashMap::new() };
        Self { inner: Arc::new(QueueInner { hasher: RandomState::new(), state: Mutex::new(state) }) }
    }

    /// Changes the maximums. Waiting requests stay in the queue.
    pub fn set_limits(&self, max_per_key: usize, max_total: usize) {
        let mut state = self.inner.lock();
        (state.max_per_key, state.max_total) = (max_per_key, max_total);
    }

    /// The number of waiting requests.
    pub fn waiter_count(&self) -> usize {
        self.inner.lock().total
    }

    /// The queue of one key.
    pub fn for_key<K: RuleKey + ?Sized>(&self, key: &K) -> KeyQueue {
        KeyQueue { queue: self.clone(), key: self.inner.hasher.hash_one(key) }
    }
}

impl QueueInner {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue of one key.
#[derive(Clone)]
pub struct KeyQueue {
    queue: LimitQueue,
    key: u64,
}

impl KeyQueue {
    /// Whether no request waits for this key.
    pub fn is_empty(&self) -> bool {
        !self.queue.inner.lock().per_key.contains_key(&self.key)
    }

    /// Enters the queue, unless it is full.
    pub fn enter(&self) -> Result<QueueGuard, WaitError> {
        let mut state = self.queue.inner.lock();
        let key_count = state.per_key.get(&self.key).copied().unwrap_or(0);
        if state.total >= state.max_total || key_count >= state.max_per_key {
            return Err(WaitError::QueueFull);
        }
        state.total += 1;
        state.per_key.insert(self.key, key_count + 1);
        drop(state);
        Ok(QueueGuard { queue: self.clone() })
    }
}

/// An entry in a queue; dropping it leaves the queue.
#[must_use = "dropping it leaves the queue"]
#[derive(Debug)]
pub struct QueueGuard {
    queue: KeyQueue,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        let mut state = self.queue.queue.inner.lock();
        state.total = state.total.saturating_sub(1);
        match state.per_key.get_mut(&self.queue.key) {
            Some(key_count) if *key_count > 1 => *key_count -= 1,
            _ => _ = state.per_key.remove(&self.queue.key),
        }
    }
}

/// Runs a future, and adds the time it was pending to `waited`; nothing if it was ready at once.
pub async fn measure_wait<F: Future>(waited: &mut Micros, future: F) -> F::Output {
    let clock = Clock::system();
    let (mut future, mut started_at) = (pin!(future), None);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            started_at.get_or_insert_with(|| clock.now());
        }
        polled
    });
    let output = output.await;
    if let Some(started_at) = started_at {
        *waited = waited.saturating_add(clock.now().saturating_sub(started_at));
    }
    output
}

impl fmt::Debug for LimitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.inner.lock();
        write!(f, "LimitQueue({} of {})", state.total, state.max_total)
    }
}

impl fmt::Debug for KeyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
