//! A number of slots for work in flight, that can change while they are in use.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾|____________   resized: what is held stays held
//!         │ ▉▉▉▉▉▉▉▉
//!       0 ┼──────────────────────▶ held
//! ```
//!
//! Taking a slot and giving it back is one atomic step each. Those who wait stand in a bounded line, by priority and
//! then in the order in which they came, and nobody slips past them.

pub(crate) mod state;

#[cfg(all(test, loom))]
mod loom;

#[cfg(feature = "tokio")]
use crate::wait::WaitUntil;
use crate::{
    clock::Clock,
    sync::{AtomicU64, Ordering},
    wait::{QueueEntry, WaitError, WaitPolicy, WaitQueues, Waiter, block_until},
};
pub use state::HasWaiters;
use state::QueuePosition;
use std::{borrow::Borrow, fmt, sync::Arc, time::Duration};
use tidegate_core::{Micros, SettingError};

/// Slots for work in flight, without keys. For many keys use a [`crate::Limiter`] with a quota such as `3 at once`.
///
/// Clones share the slots.
///
/// ```
/// use tidegate_limiter::Semaphore;
///
/// let slots = Semaphore::new(1)?;
/// let slot = slots.try_acquire().expect("there is one");
/// assert!(slots.try_acquire().is_none());
/// drop(slot); // also by a panic, or with the future that holds it
/// assert!(slots.try_acquire().is_some());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct Semaphore {
    shared: Arc<SharedSemaphore>,
}

struct SharedSemaphore {
    state: AtomicU64,
    limit: AtomicU64,
    clock: Clock,
    wait_queues: WaitQueues,
}

/// Settings of [`Semaphore`].
#[derive(Clone, Debug)]
pub struct SemaphoreBuilder {
    clock: Option<Clock>,
    max_waiters: usize,
    waiter_ttl: Micros,
}

/// All wait in one line.
const QUEUE_KEY: u64 = 0;
/// Places in the line: unless told otherwise, and at most.
const DEFAULT_MAX_WAITERS: usize = 1_024;
const MAX_WAITERS_LIMIT: usize = 1 << 16;

impl Semaphore {
    /// So many slots.
    pub fn new(limit: u32) -> Result<Self, SettingError> {
        Self::builder().build(limit)
    }

    /// Slots with settings of their own.
    pub fn builder() -> SemaphoreBuilder {
        SemaphoreBuilder { clock: None, max_waiters: DEFAULT_MAX_WAITERS, waiter_ttl: Micros::MAX }
    }

    /// Takes a slot, if one is free and nobody waits for it.
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphorePermit<&Self>> {
        self.shared.try_acquire(1).map(|in_flight| SemaphorePermit { semaphore: self, count: 1, in_flight })
    }

    /// Takes `count` slots at once or none: for work that weighs more.
    pub fn try_acquire_many(&self, count: u32) -> Option<SemaphorePermit<&Self>> {
        self.shared.try_acquire(count).map(|in_flight| SemaphorePermit { semaphore: self, count, in_flight })
    }

    /// The same as [`try_acquire`](Self::try_acquire), for work that outlives the borrow.
    pub fn try_acquire_owned(&self) -> Option<SemaphorePermit<Self>> {
        let in_flight = self.shared.try_acquire(1)?;
        Some(SemaphorePermit { semaphore: self.clone(), count: 1, in_flight })
    }

    /// Waits in line for as many slots as the waiter costs. Dropping the future leaves the line.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self, waiter: Waiter) -> Result<SemaphorePermit<&Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire(waiter).await?;
        Ok(SemaphorePermit { semaphore: self, count: taken, in_flight })
    }

    /// The same as [`acquire`](Self::acquire), for work that outlives the borrow.
    #[cfg(feature = "tokio")]
    pub async fn acquire_owned(&self, waiter: Waiter) -> Result<SemaphorePermit<Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire(waiter).await?;
        Ok(SemaphorePermit { semaphore: self.clone(), count: taken, in_flight })
    }

    /// The same as [`acquire`](Self::acquire) for threads: blocks.
    pub fn acquire_blocking(&self, waiter: Waiter) -> Result<SemaphorePermit<&Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire_blocking(waiter)?;
        Ok(SemaphorePermit { semaphore: self, count: taken, in_flight })
    }

    /// Changes the number of slots. What is held stays held: after a cut nothing is granted until enough has been
    /// given back.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        self.wake(self.set_limit(limit));
        Ok(())
    }

    /// Changes the number of slots, which is not zero. Whoever calls this wakes those who wait, at a moment that suits.
    #[doc(hidden)]
    pub fn set_limit(&self, limit: u32) -> HasWaiters {
        self.shared.set_limit(limit.into())
    }

    /// Wakes the first in line, if anybody waits. Not under a lock: a waker may run whatever it likes.
    #[doc(hidden)]
    pub fn wake(&self, awaited: HasWaiters) {
        if awaited == HasWaiters::Yes {
            self.shared.wait_queues.wake_first(QUEUE_KEY);
        }
    }

    /// How many slots there are.
    pub fn limit(&self) -> u32 {
        saturate_u32(self.shared.limit.load(Ordering::Relaxed))
    }

    /// How many are held.
    pub fn in_flight(&self) -> u32 {
        saturate_u32(state::in_flight(self.shared.state.load(Ordering::Relaxed)))
    }

    /// How many callers stand in line.
    pub fn waiters(&self) -> u32 {
        saturate_u32(state::waiters(self.shared.state.load(Ordering::Relaxed)))
    }

    /// The clock by which those in line wait.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

impl SemaphoreBuilder {
    /// The clock by which those in line wait; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How many callers may wait in line, 1024 unless told otherwise and 65,536 at most.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters: max_waiters.min(MAX_WAITERS_LIMIT), ..self }
    }

    /// How long a caller may stand in line at the longest, whatever deadline it came with.
    #[must_use]
    pub fn waiter_ttl(self, ttl: Duration) -> Self {
        Self { waiter_ttl: ttl.into(), ..self }
    }

    /// So many slots.
    pub fn build(self, limit: u32) -> Result<Semaphore, SettingError> {
        SettingError::require_nonzero("a number of slots", limit.into())?;
        let shared = SharedSemaphore {
            state: AtomicU64::new(0),
            limit: AtomicU64::new(limit.into()),
            clock: self.clock.unwrap_or_default(),
            wait_queues: WaitQueues::new(WaitPolicy::Queue, self.max_waiters, self.waiter_ttl),
        };
        Ok(Semaphore { shared: Arc::new(shared) })
    }
}

impl SharedSemaphore {
    #[inline]
    fn try_acquire(&self, count: u32) -> Option<u32> {
        self.acquire_at(count.into(), QueuePosition::Unqueued).ok()
    }

    #[inline]
    fn acquire_at(&self, count: u64, turn: QueuePosition) -> Result<u32, u64> {
        state::try_acquire(&self.state, count, self.limit.load(Ordering::Relaxed), turn, 0).map(saturate_u32)
    }

    #[inline]
    fn release(&self, count: u32) {
        if state::release(&self.state, count.into()) == HasWaiters::Yes {
            self.wait_queues.wake_first(QUEUE_KEY);
        }
    }

    /// Who enters the line after this sees the new limit; who entered before it must be woken.
    fn set_limit(&self, limit: u64) -> HasWaiters {
        self.limit.store(limit, Ordering::Relaxed);
        match state::waiters(self.state.fetch_add(0, Ordering::AcqRel)) {
            0 => HasWaiters::No,
            _ => HasWaiters::Yes,
        }
    }

    #[cfg(feature = "tokio")]
    async fn acquire(&self, waiter: Waiter) -> Result<(u32, u32), WaitError> {
        let mut wait = match self.enqueue(waiter) {
            EnqueueResult::Acquired(in_flight) => return Ok((saturate_u32(waiter.cost), in_flight)),
            EnqueueResult::Queued(wait) => wait?,
        };
        loop {
            match wait.step() {
                PermitStep::Done(end) => return end.map(|in_flight| (saturate_u32(waiter.cost), in_flight)),
                PermitStep::Pause(until) => {
                    WaitUntil::new(&self.clock, until, Some(wait.entry.notify())).await;
                }
            }
        }
    }

    fn acquire_blocking(&self, waiter: Waiter) -> Result<(u32, u32), WaitError> {
        let mut wait = match self.enqueue(waiter) {
            EnqueueResult::Acquired(in_flight) => return Ok((saturate_u32(waiter.cost), in_flight)),
            EnqueueResult::Queued(wait) => wait?,
        };
        loop {
            match wait.step() {
                PermitStep::Done(end) => return end.map(|in_flight| (saturate_u32(waiter.cost), in_flight)),
                PermitStep::Pause(until) => block_until(&self.clock, until, Some(wait.entry.notify())),
            }
        }
    }

    /// Takes at once, or a place in line.
    fn enqueue(&self, waiter: Waiter) -> EnqueueResult<'_> {
        match self.acquire_at(waiter.cost, QueuePosition::Unqueued) {
            Ok(in_flight) => EnqueueResult::Acquired(in_flight),
            Err(_) if waiter.cost > self.limit.load(Ordering::Relaxed) => {
                EnqueueResult::Queued(Err(WaitError::ExceedsLimit))
            }
            Err(_) => EnqueueResult::Queued(
                self.wait_queues.try_enqueue(QUEUE_KEY, waiter, self.clock.now()).map(|ticket| {
                    state::add_waiter(&self.state);
                    PermitWait { shared: self, entry: ticket, is_counted: true }
                }),
            ),
        }
    }
}

enum EnqueueResult<'a> {
    Acquired(u32),
    Queued(Result<PermitWait<'a>, WaitError>),
}

/// One caller in line.
struct PermitWait<'a> {
    shared: &'a SharedSemaphore,
    entry: QueueEntry<'a>,
    /// Whether the word still counts it among those who wait.
    is_counted: bool,
}

enum PermitStep {
    Done(Result<u32, WaitError>),
    /// Look again at this moment, or when the bell rings.
    Pause(Option<Micros>),
}

impl PermitWait<'_> {
    fn step(&mut self) -> PermitStep {
        if self.entry.is_first()
            && let Ok(in_flight) = self.shared.acquire_at(self.entry.cost(), QueuePosition::Front)
        {
            self.is_counted = false;
            return PermitStep::Done(Ok(in_flight));
        }
        // After a cut it may want more than there is; those behind must not wait for it.
        if self.entry.cost() > self.shared.limit.load(Ordering::Relaxed) {
            return PermitStep::Done(Err(WaitError::ExceedsLimit));
        }
        let now = self.shared.clock.now();
        match self.entry.effective_deadline() {
            Some(latest) if now >= latest => PermitStep::Done(Err(self.entry.timeout_error())),
            latest => PermitStep::Pause(latest),
        }
    }
}

/// Leaves the count before the line: who is woken by the ticket must find its place at the head.
impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            state::remove_waiter(&self.shared.state);
        }
    }
}

/// A slot, or several, that give themselves back when they are dropped: by a panic or a cancelled future too.
///
/// It borrows its [`Semaphore`], or owns a handle to them.
#[must_use = "dropping a slot gives it back"]
pub struct SemaphorePermit<S: Borrow<Semaphore> = Semaphore> {
    semaphore: S,
    count: u32,
    in_flight: u32,
}

impl<S: Borrow<Semaphore>> SemaphorePermit<S> {
    /// How many were in flight when it was taken, itself included.
    pub fn in_flight(&self) -> u32 {
        self.in_flight
    }
}

impl<S: Borrow<Semaphore>> Drop for SemaphorePermit<S> {
    #[inline]
    fn drop(&mut self) {
        self.semaphore.borrow().shared.release(self.count);
    }
}

impl<S: Borrow<Semaphore>> fmt::Debug for SemaphorePermit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SemaphorePermit({} of {:?})", self.count, self.semaphore.borrow())
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Semaphore({} of {}, {} waiting)", self.in_flight(), self.limit(), self.waiters())
    }
}

/// Counts of slots fit in 32 bits, see [`word::MAX_PERMITS`].
fn saturate_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
