//! A concurrency limit that a controller adjusts to the outcomes of calls.

#[cfg(feature = "tokio")]
use crate::call_guard::CallPermit;
use crate::{
    CallOutcome, Rejection,
    adaptive::{CallSample, Controller},
    call_guard::{CallGuard, RecordOutcome},
};
use std::fmt;
#[cfg(feature = "tokio")]
use std::sync::Arc;
use tidegate_core::{Micros, SettingError};
use tidegate_limiter::{
    HasWaiters, Semaphore, SemaphoreBuilder, SemaphorePermit,
    sync::{Mutex, lock},
};
#[cfg(feature = "tokio")]
use tidegate_limiter::{WaitError, Waiter};

/// Limits calls in flight to what the backend can handle, as found by a controller such as
/// [`LatencyTarget`](crate::adaptive::LatencyTarget).
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, CallGuard, adaptive::LatencyTarget};
///
/// let limit = AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?; // the latency that you promise
/// match limit.try_acquire() {
///     Err(rejection) => println!("rejected: {rejection}"),
///     Ok(permit) => {
///         // … call the backend …
///         permit.succeed();
///     }
/// }
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A failure is one that indicates overload: a timeout, a rejection, a dropped connection. Record other
/// errors as ignored or as successes. A permit that is dropped without an outcome is ignored, which is no
/// evidence unless the call was cancelled late.
///
/// Share it by reference or in an `Arc`. [`CallGuard`] documents admission, [`crate::CallPermit`] how to
/// record outcomes.
pub struct AdaptiveLimit {
    slots: Semaphore,
    controller: Mutex<Box<dyn Controller>>,
}

/// The data about a call that an adaptive limit needs when it ends.
#[derive(Debug)]
pub struct AdaptiveEntry {
    slot: SemaphorePermit,
    started_at: Micros,
}

impl AdaptiveLimit {
    /// Creates a limit that starts at the initial limit of the controller.
    pub fn new(controller: impl Controller + 'static) -> Result<Self, SettingError> {
        Self::with_slots(controller, Semaphore::builder())
    }

    /// Like [`new`](Self::new), with settings for the wait queue and the clock.
    pub fn with_slots(
        controller: impl Controller + 'static,
        slots: SemaphoreBuilder,
    ) -> Result<Self, SettingError> {
        let slots = slots.build(controller.limit())?;
        Ok(Self { slots, controller: Mutex::new(Box::new(controller)) })
    }

    /// Waits in the queue for a slot. Only the time after that counts as latency.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self, waiter: Waiter) -> Result<CallPermit<&Self>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(CallPermit::new(self, self.new_entry(slot)))
    }

    /// Waits in the queue for a slot, and returns a permit that borrows nothing.
    #[cfg(feature = "tokio")]
    pub async fn acquire_owned(self: &Arc<Self>, waiter: Waiter) -> Result<CallPermit<Arc<Self>>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(CallPermit::new(self.clone(), self.new_entry(slot)))
    }

    /// The number of calls that may be in flight now.
    pub fn limit(&self) -> u32 {
        self.slots.limit()
    }

    /// The number of calls in flight.
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn new_entry(&self, slot: SemaphorePermit) -> AdaptiveEntry {
        AdaptiveEntry { slot, started_at: self.slots.clock().now() }
    }
}

impl CallGuard for AdaptiveLimit {
    fn admit(&self) -> Result<AdaptiveEntry, Rejection> {
        self.slots
            .try_acquire_owned()
            .map(|slot| self.new_entry(slot))
            .ok_or(Rejection::ConcurrencyLimitReached)
    }
}

impl RecordOutcome for AdaptiveLimit {
    type Entry = AdaptiveEntry;

    fn record(&self, entry: AdaptiveEntry, report: CallOutcome) {
        let AdaptiveEntry { slot, started_at } = entry;
        let in_flight = slot.in_flight();
        // Released before the controller runs, so that the next waiter is not delayed.
        drop(slot);
        let mut controller = lock(&self.controller);
        // Read under the lock, so that ends are in order.
        let end = self.slots.clock().now();
        let before = controller.limit();
        let limit = controller.record(CallSample { start: started_at, end, in_flight, outcome: report });
        // Set under the lock, so that the limit is the latest one of the controller.
        let awaited = if limit == before { HasWaiters::No } else { self.slots.set_limit(limit.max(1)) };
        drop(controller);
        self.slots.wake(awaited);
    }
}

impl fmt::Debug for AdaptiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimit").field("slots", &self.slots).finish_non_exhaustive()
    }
}
