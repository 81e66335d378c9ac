//! A concurrency limit that finds itself: slots whose number a controller sets from how calls end.

#[cfg(feature = "tokio")]
use crate::guard::Pass;
use crate::{
    Rejection, Report,
    adaptive::{Call, Controller},
    guard::{Guard, Settle},
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
/// [`Anchored`](crate::adaptive::Anchored).
///
/// ```
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, Guard, adaptive::Anchored};
///
/// let limit = AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?; // the latency that you promise
/// match limit.try_pass() {
///     Err(rejection) => println!("come back later: {rejection}"),
///     Ok(pass) => {
///         // … call the backend …
///         pass.succeed();
///     }
/// }
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A failure is one that tells of overload: a timeout, a refusal, a dropped connection. Report errors of other kinds as
/// ignored, or as successes. A pass that is dropped without a word is ignored, which tells the controller nothing unless
/// the call was given up late.
///
/// Share it by reference or in an `Arc`; see [`Guard`] for how to ask, and [`crate::Pass`] for how to report.
pub struct AdaptiveLimit {
    slots: Semaphore,
    controller: Mutex<Box<dyn Controller>>,
}

/// What an adaptive limit must know of a call when it ends.
#[derive(Debug)]
pub struct AdaptiveEntry {
    slot: SemaphorePermit,
    began: Micros,
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
    pub async fn pass(&self, waiter: Waiter) -> Result<Pass<&Self>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(Pass::new(self, self.entry(slot)))
    }

    /// Waits in line for room, and gives a pass that borrows nothing.
    #[cfg(feature = "tokio")]
    pub async fn pass_owned(self: &Arc<Self>, waiter: Waiter) -> Result<Pass<Arc<Self>>, WaitError> {
        let slot = self.slots.acquire_owned(waiter).await?;
        Ok(Pass::new(self.clone(), self.entry(slot)))
    }

    /// How many calls may be in flight now.
    pub fn limit(&self) -> u32 {
        self.slots.limit()
    }

    /// How many are.
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn entry(&self, slot: SemaphorePermit) -> AdaptiveEntry {
        AdaptiveEntry { slot, began: self.slots.clock().now() }
    }
}

impl Guard for AdaptiveLimit {
    fn enter(&self) -> Result<AdaptiveEntry, Rejection> {
        self.slots.try_acquire_owned().map(|slot| self.entry(slot)).ok_or(Rejection::Full)
    }
}

impl Settle for AdaptiveLimit {
    type Entry = AdaptiveEntry;

    fn settle(&self, entry: AdaptiveEntry, report: Report) {
        let AdaptiveEntry { slot, began } = entry;
        let in_flight = slot.in_flight();
        // Given back before the controller hears of it, so that the next is not kept waiting.
        drop(slot);
        let mut controller = lock(&self.controller);
        // Read under the lock, so that ends are in order.
        let end = self.slots.clock().now();
        let before = controller.limit();
        let limit = controller.record(Call { start: began, end, in_flight, report });
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
