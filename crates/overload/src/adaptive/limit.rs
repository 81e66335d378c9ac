//! A concurrency limit that finds itself: slots whose number a controller sets from how calls end.

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

/// As many calls in flight as the backend can take, found by a controller such as
/// [`LatencyTarget`](crate::adaptive::LatencyTarget).
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, CallGuard, adaptive::LatencyTarget};
///
/// let limit = AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?; // the latency that you promise
/// match limit.try_acquire() {
///     Err(rejection) => println!("come back later: {rejection}"),
///     Ok(acquire) => {
///         // … call the backend …
///         acquire.succeed();
///     }
/// }
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A failure is one that tells of overload: a timeout, a refusal, a dropped connection. Report errors of other kinds as
/// ignored, or as successes. A pass that is dropped without a word is ignored, which tells the controller nothing unless
/// the call was given up late.
///
/// Share it by reference or in an `Arc`; see [`CallGuard`] for how to ask, and [`crate::CallPermit`] for how to report.
pub struct AdaptiveLimit {
    slots: Semaphore,
    controller: Mutex<Box<dyn Controller>>,
}

/// What an adaptive limit must know of a call when it ends.
#[derive(Debug)]
pub struct AdaptiveEntry {
    slot: SemaphorePermit,
    started_at: Micros,
}

impl AdaptiveLimit {
    /// A limit that starts where the controller does.
    pub fn new(controller: impl Controller + 'static) -> Result<Self, SettingError> {
        Self::with_slots(controller, Semaphore::builder())
    }

    /// The same, with settings for those who wait, and a clock.
    pub fn with_slots(
        controller: impl Controller + 'static,
        slots: SemaphoreBuilder,
    ) -> Result<Self, SettingError> {
        let slots = slots.build(controller.limit())?;
        Ok(Self { slots, controller: Mutex::new(Box::new(controller)) })
    }

    /// Waits in line for room. Only the time after that counts as the call's.
    #[cfg(feature = "tokio")]
    pub async fn acquire(&self, waiter: Waiter) -> Result<CallPermit<&Self>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(CallPermit::new(self, self.new_entry(slot)))
    }

    /// Waits in line for room, and gives a pass that borrows nothing.
    #[cfg(feature = "tokio")]
    pub async fn acquire_owned(self: &Arc<Self>, waiter: Waiter) -> Result<CallPermit<Arc<Self>>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(CallPermit::new(self.clone(), self.new_entry(slot)))
    }

    /// How many calls may be in flight now.
    pub fn limit(&self) -> u32 {
        self.slots.limit()
    }

    /// How many are.
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn new_entry(&self, slot: SemaphorePermit) -> AdaptiveEntry {
        AdaptiveEntry { slot, started_at: self.slots.clock().now() }
    }
}

impl CallGuard for AdaptiveLimit {
    fn admit(&self) -> Result<AdaptiveEntry, Rejection> {
        self.slots.try_acquire_owned().map(|slot| self.new_entry(slot)).ok_or(Rejection::Full)
    }
}

impl RecordOutcome for AdaptiveLimit {
    type Entry = AdaptiveEntry;

    fn record(&self, entry: AdaptiveEntry, report: CallOutcome) {
        let AdaptiveEntry { slot, started_at: began } = entry;
        let in_flight = slot.in_flight();
        // Given back before the controller hears of it, so that the next is not kept waiting.
        drop(slot);
        let mut controller = lock(&self.controller);
        // Read under the lock, so that ends are in order.
        let end = self.slots.clock().now();
        let before = controller.limit();
        let limit = controller.record(CallSample { start: began, end, in_flight, outcome: report });
        // Set under the lock, so that the last word is the controller's.
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
