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
/// use tidegate_limiter::Rejected;
/// use tidegate_rule::Queue;
///
/// let queue = Queue::new(1, 2);
/// let first = queue.of_key("a").enter()?;
/// assert_eq!(queue.of_key("a").enter().err(), Some(Rejected::Full));
/// let second = queue.of_key("b").enter()?;
/// assert_eq!(queue.of_key("c").enter().err(), Some(Rejected::Full));
/// drop(first);
/// assert!(queue.of_key("c").enter().is_ok());
/// # Ok::<(), Rejected>(())
/// ```
#[derive(Clone)]
pub struct Queue {
    inner: Arc<Inner>,
}

struct Inner {
    hasher: RandomState,
    waiting: Mutex<Taken>,
}

struct Taken {
    most: usize,
    in_all: usize,
    all: usize,
    /// By the hash of the key; none is kept for whom nobody waits.
    each: HashMap<u64, usize>,
}

impl Queue {
    /// So many places for one key, and so many over all keys.
    pub fn new(most: usize, in_all: usize) -> Self {
        let waiting = Taken { most, in_all, all: 0, each: HashMap::new() };
        Self { inner: Arc::new(Inner { hasher: RandomState::new(), waiting: Mutex::new(waiting) }) }
    }

    /// So many from now on; whoever waits stays.
    pub fn change(&self, most: usize, in_all: usize) {
        let mut waiting = self.inner.waiting();
        (waiting.most, waiting.in_all) = (most, in_all);
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.inner.waiting().all
    }

    /// The line of one key.
    pub fn of_key<K: RuleKey + ?Sized>(&self, key: &K) -> KeyQueue {
        KeyQueue { queue: self.clone(), key: self.inner.hasher.hash_one(key) }
    }
}

impl Inner {
    fn waiting(&self) -> MutexGuard<'_, Taken> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The line of one key.
#[derive(Clone)]
pub struct KeyQueue {
    queue: Queue,
    key: u64,
}

impl KeyQueue {
    /// Whether nobody waits for this key.
    pub fn is_empty(&self) -> bool {
        !self.queue.inner.waiting().each.contains_key(&self.key)
    }

    /// Takes a place, if there is one left.
    pub fn enter(&self) -> Result<Waiting, WaitError> {
        let mut waiting = self.queue.inner.waiting();
        let of_key = waiting.each.get(&self.key).copied().unwrap_or(0);
        if waiting.all >= waiting.in_all || of_key >= waiting.most {
            return Err(WaitError::QueueFull);
        }
        waiting.all += 1;
        waiting.each.insert(self.key, of_key + 1);
        drop(waiting);
        Ok(Waiting { place: self.clone() })
    }
}

/// One who waits, until it is dropped.
#[must_use = "dropping it leaves the queue"]
#[derive(Debug)]
pub struct Waiting {
    place: KeyQueue,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = self.place.queue.inner.waiting();
        waiting.all = waiting.all.saturating_sub(1);
        match waiting.each.get_mut(&self.place.key) {
            Some(of_key) if *of_key > 1 => *of_key -= 1,
            _ => _ = waiting.each.remove(&self.place.key),
        }
    }
}

/// Runs a future, and adds how long it kept its caller waiting; nothing where it was ready at once.
pub async fn add_wait<F: Future>(waited: &mut Micros, future: F) -> F::Output {
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

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.inner.waiting();
        write!(f, "Queue({} of {})", waiting.all, waiting.in_all)
    }
}

impl fmt::Debug for KeyQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.fmt(f)
    }
}
