//! Who may wait for a turn: so many of one key, so many of all.

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

/// Places for those who wait for their turn, whatever they wait for: so many for each key, so that nobody fills the line of
/// others, and so many over all keys, so that many keys do not fill the memory. Clones are the same queue.
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
    /// By the hash of the key; none is kept for whom nobody waits.
    per_key: HashMap<u64, usize>,
}

impl LimitQueue {
    /// So many places for one key, and so many over all keys.
    pub fn new(max_per_key: usize, max_total: usize) -> Self {
        let waiting = QueueState { max_per_key, max_total, total: 0, per_key: HashMap::new() };
        Self { inner: Arc::new(QueueInner { hasher: RandomState::new(), state: Mutex::new(waiting) }) }
    }

    /// So many from now on; whoever waits stays.
    pub fn set_limits(&self, max_per_key: usize, max_total: usize) {
        let mut waiting = self.inner.lock();
        (waiting.max_per_key, waiting.max_total) = (max_per_key, max_total);
    }

    /// How many wait.
    pub fn waiter_count(&self) -> usize {
        self.inner.lock().total
    }

    /// The line of one key.
    pub fn for_key<K: RuleKey + ?Sized>(&self, key: &K) -> KeyQueue {
        KeyQueue { queue: self.clone(), key: self.inner.hasher.hash_one(key) }
    }
}

impl QueueInner {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of one key.
#[derive(Clone)]
pub struct KeyQueue {
    queue: LimitQueue,
    key: u64,
}

impl KeyQueue {
    /// Whether nobody waits for this key.
    pub fn is_empty(&self) -> bool {
        !self.queue.inner.lock().per_key.contains_key(&self.key)
    }

    /// Takes a place, if there is one left.
    pub fn enter(&self) -> Result<QueueGuard, WaitError> {
        let mut waiting = self.queue.inner.lock();
        let of_key = waiting.per_key.get(&self.key).copied().unwrap_or(0);
        if waiting.total >= waiting.max_total || of_key >= waiting.max_per_key {
            return Err(WaitError::QueueFull);
        }
        waiting.total += 1;
        waiting.per_key.insert(self.key, of_key + 1);
        drop(waiting);
        Ok(QueueGuard { queue: self.clone() })
    }
}

/// One who waits, until it is dropped.
#[must_use = "dropping it leaves the queue"]
#[derive(Debug)]
pub struct QueueGuard {
    queue: KeyQueue,
}

impl Drop for QueueGuard {
    fn drop(&mut self) {
        let mut waiting = self.queue.queue.inner.lock();
        waiting.total = waiting.total.saturating_sub(1);
        match waiting.per_key.get_mut(&self.queue.key) {
            Some(of_key) if *of_key > 1 => *of_key -= 1,
            _ => _ = waiting.per_key.remove(&self.queue.key),
        }
    }
}

/// Runs a future, and adds how long it kept its caller waiting; nothing where it was ready at once.
pub async fn measure_wait<F: Future>(waited: &mut Micros, future: F) -> F::Output {
    let clock = Clock::system();
    let (mut future, mut begun) = (pin!(future), None);
    let output = poll_fn(|context| {
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            begun.get_or_insert_with(|| clock.now());
        }
        polled
    });
    let output = output.await;
    if let Some(begun) = begun {
        *waited = waited.plus(clock.now().since(begun));
    }
    output
}

impl fmt::Debug for LimitQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.inner.lock();
        write!(f, "LimitQueue({} of {})", waiting.total, waiting.max_total)
    }
}

impl fmt::Debug for KeyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
