//! A semaphore for work in flight, whose limit can change while permits are in use.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾|____________   resized: permits in use stay valid
//!         │ ▉▉▉▉▉▉▉▉
//!       0 ┼──────────────────────▶ in use
//! ```
//!
//! Acquiring and releasing a permit is one atomic operation each. Callers wait in a bounded queue, by priority and then in
//! order of arrival, and new callers cannot overtake them.

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

/// Limits work in flight, without keys. For many keys use a [`crate::Limiter`] with a quota such as `3 at once`.
///
/// Clones share the permits.
///
/// ```
/// use tidegate_limiter::Semaphore;
///
/// let semaphore = Semaphore::new(1)?;
/// let permit = semaphore.try_acquire().expect("one permit is free");
/// assert!(semaphore.try_acquire().is_none());
/// drop(permit); // a panic or a cancelled future releases it too
/// assert!(semaphore.try_acquire().is_some());
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

/// All waiters share one queue.
const QUEUE_KEY: u64 = 0;
/// The number of waiting callers: the default, and the maximum.
const DEFAULT_MAX_WAITERS: usize = 1_024;
const MAX_WAITERS_LIMIT: usize = 1 << 16;

impl Semaphore {
    /// Creates a semaphore with `limit` permits.
    pub fn new(limit: u32) -> Result<Self, SettingError> {
        Self::builder().build(limit)
    }

    /// Returns a builder with default settings.
    pub fn builder() -> SemaphoreBuilder {
        SemaphoreBuilder { clock: None, max_waiters: DEFAULT_MAX_WAITERS, waiter_ttl: Micros::MAX }
    }

    /// Acquires a permit if one is free and no caller waits for it.
    #[inline]
    pub fn try_acquire(&self) -> Option<SemaphorePermit<&Self>> {
        self.shared.try_acquire(1).map(|in_flight| SemaphorePermit { semaphore: self, count: 1, in_flight })
    }

    /// Acquires `count` permits at once or none, for work of a larger weight.
    pub fn try_acquire_many(&self, count: u32) -> Option<SemaphorePermit<&Self>> {
        self.shared.try_acquire(count).map(|in_flight| SemaphorePermit { semaphore: self, count, in_flight })
    }

    /// Like [`try_acquire`](Self::try_acquire), for work that outlives the borrow.
    pub fn try_acquire_owned(&self) -> Option<SemaphorePermit<Self>> {
        let in_flight = self.shared.try_acquire(1)?;
        Some(SemaphorePermit { semaphore: self.clone(), count: 1, in_flight })
    }

    /// Waits in the queue for as many permits as the waiter costs. Dropping the future leaves the queue.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self, waiter: Waiter) -> Result<SemaphorePermit<&Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire(waiter).await?;
        Ok(SemaphorePermit { semaphore: self, count: taken, in_flight })
    }

    /// Like [`acquire`](Self::acquire), for work that outlives the borrow.
    #[cfg(feature = "tokio")]
    pub async fn acquire_owned(&self, waiter: Waiter) -> Result<SemaphorePermit<Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire(waiter).await?;
        Ok(SemaphorePermit { semaphore: self.clone(), count: taken, in_flight })
    }

    /// Like [`acquire`](Self::acquire), but blocks this thread.
    pub fn acquire_blocking(&self, waiter: Waiter) -> Result<SemaphorePermit<&Self>, WaitError> {
        let (taken, in_flight) = self.shared.acquire_blocking(waiter)?;
        Ok(SemaphorePermit { semaphore: self, count: taken, in_flight })
    }

    /// Changes the limit. Permits in use stay valid; after a reduction, new ones are granted only below the new limit.
    pub fn resize(&self, limit: u32) -> Result<(), SettingError> {
        SettingError::require_nonzero("the number of slots", limit.into())?;
        self.wake(self.set_limit(limit));
        Ok(())
    }

    /// Changes the limit, which must not be zero. The caller must call [`wake`](Self::wake) with the result.
    #[doc(hidden)]
    pub fn set_limit(&self, limit: u32) -> HasWaiters {
        self.shared.set_limit(limit.into())
    }

    /// Wakes the first waiter, if there is one. Do not call it under a lock: a waker can run arbitrary code.
    #[doc(hidden)]
    pub fn wake(&self, waiters: HasWaiters) {
        if waiters == HasWaiters::Yes {
            self.shared.wait_queues.wake_first(QUEUE_KEY);
        }
    }

    /// The number of permits.
    pub fn limit(&self) -> u32 {
        saturate_u32(self.shared.limit.load(Ordering::Relaxed))
    }

    /// The number of permits in use.
    pub fn in_flight(&self) -> u32 {
        saturate_u32(state::in_flight(self.shared.state.load(Ordering::Relaxed)))
    }

    /// The number of waiting callers.
    pub fn waiters(&self) -> u32 {
        saturate_u32(state::waiters(self.shared.state.load(Ordering::Relaxed)))
    }

    /// The clock of the waits.
    pub fn clock(&self) -> &Clock {
        &self.shared.clock
    }
}

impl SemaphoreBuilder {
    /// Sets the clock of the waits; by default [`Clock::system`].
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the maximum number of waiting callers; by default 1024, at most 65,536.
    #[must_use]
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters: max_waiters.min(MAX_WAITERS_LIMIT), ..self }
    }

    /// Sets the longest time that a caller can wait in the queue, independent of its own deadline.
    #[must_use]
    pub fn waiter_ttl(self, ttl: Duration) -> Self {
        Self { waiter_ttl: ttl.into(), ..self }
    }

    /// Builds a semaphore with `limit` permits.
    pub fn build(self, limit: u32) -> Result<Semaphore, SettingError> {
        SettingError::require_nonzero("the number of slots", limit.into())?;
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
    fn acquire_at(&self, count: u64, position: QueuePosition) -> Result<u32, u64> {
        state::try_acquire(&self.state, count, self.limit.load(Ordering::Relaxed), position, 0)
            .map(saturate_u32)
    }

    #[inline]
    fn release(&self, count: u32) {
        if state::release(&self.state, count.into()) == HasWaiters::Yes {
            self.wait_queues.wake_first(QUEUE_KEY);
        }
    }

    /// Callers that enqueue after this see the new limit; earlier ones must be woken.
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

    /// Acquires at once, or enqueues.
    fn enqueue(&self, waiter: Waiter) -> EnqueueResult<'_> {
        match self.acquire_at(waiter.cost, QueuePosition::Unqueued) {
            Ok(in_flight) => EnqueueResult::Acquired(in_flight),
            Err(_) if waiter.cost > self.limit.load(Ordering::Relaxed) => {
                EnqueueResult::Queued(Err(WaitError::ExceedsLimit))
            }
            Err(_) => EnqueueResult::Queued(
                self.wait_queues.try_enqueue(QUEUE_KEY, waiter, self.clock.now()).map(|entry| {
                    state::add_waiter(&self.state);
                    PermitWait { shared: self, entry, is_counted: true }
                }),
            ),
        }
    }
}

enum EnqueueResult<'a> {
    Acquired(u32),
    Queued(Result<PermitWait<'a>, WaitError>),
}

/// One waiting caller.
struct PermitWait<'a> {
    shared: &'a SharedSemaphore,
    entry: QueueEntry<'a>,
    /// Whether `state` still counts it as a waiter.
    is_counted: bool,
}

enum PermitStep {
    Done(Result<u32, WaitError>),
    /// Check again at this time, or on notification.
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
        // After a reduction of the limit the cost may exceed it; later waiters must not wait for this one.
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

/// Decrements the waiter count before `entry` leaves the queue, so that the next waiter is the first when it is woken.
impl Drop for PermitWait<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            state::remove_waiter(&self.shared.state);
        }
    }
}

/// One or several permits that are released on drop, also by a panic or a cancelled future.
///
/// It borrows its [`Semaphore`], or owns a handle to it.
#[must_use = "dropping a permit releases it"]
pub struct SemaphorePermit<S: Borrow<Semaphore> = Semaphore> {
    semaphore: S,
    count: u32,
    in_flight: u32,
}

impl<S: Borrow<Semaphore>> SemaphorePermit<S> {
    /// The number of permits in flight when this one was acquired, including itself.
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

/// Counts of permits fit in 32 bits, see `state::MAX_PERMITS`.
fn saturate_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
