//! A concurrency limit that finds itself: slots whose number a controller sets from how calls end.

#[cfg(feature = "tokio")]
use crate::wait::{Refused, Waiter};
use crate::{
    clock::Clock,
    slots::{Slot, Slots, SlotsBuilder},
    sync::{Mutex, lock},
};
use std::{fmt, sync::Arc, thread};
use tidegate_core::{
    Micros, Report, SettingError,
    adaptive::{Call, Controller},
};

/// As many calls in flight as the backend can take, found by a controller such as
/// [`Anchored`](tidegate_core::adaptive::Anchored).
///
/// Clones share the limit.
///
/// ```
/// use tidegate_core::{Micros, adaptive::Anchored};
/// use tidegate_engine::AdaptiveLimit;
///
/// let limit = AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?; // the latency that you promise
/// match limit.try_enter() {
///     None => println!("busy: tell the caller to come back later"),
///     Some(attempt) => {
///         // … call the backend …
///         attempt.succeed();
///     }
/// }
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone)]
pub struct AdaptiveLimit {
    slots: Slots,
    controller: Arc<Mutex<Box<dyn Controller>>>,
}

impl AdaptiveLimit {
    /// A limit that starts where the controller does.
    pub fn new(controller: impl Controller + 'static) -> Result<Self, SettingError> {
        Self::with_slots(controller, Slots::builder())
    }

    /// The same, with settings for those who wait, and a clock.
    pub fn with_slots(
        controller: impl Controller + 'static,
        slots: SlotsBuilder,
    ) -> Result<Self, SettingError> {
        let slots = slots.build(controller.limit())?;
        Ok(Self { slots, controller: Arc::new(Mutex::new(Box::new(controller))) })
    }

    /// Lets a call in, if there is room for it.
    pub fn try_enter(&self) -> Option<Attempt> {
        self.slots.try_take_owned().map(|slot| self.attempt(slot))
    }

    /// Waits in line for room. Only the time after that counts as the call's.
    #[cfg(feature = "tokio")]
    pub async fn enter(&self, waiter: Waiter) -> Result<Attempt, Refused> {
        self.slots.take_owned(waiter).await.map(|slot| self.attempt(slot))
    }

    /// How many calls may be in flight now.
    pub fn limit(&self) -> u32 {
        self.slots.limit()
    }

    /// How many are.
    pub fn in_flight(&self) -> u32 {
        self.slots.in_flight()
    }

    fn attempt(&self, slot: Slot) -> Attempt {
        let start = self.clock().now();
        Attempt { limit: self.clone(), in_flight: slot.in_flight(), slot: Some(slot), start }
    }

    fn clock(&self) -> &Clock {
        self.slots.clock()
    }

    fn record(&self, call: Call) {
        let mut controller = lock(&self.controller);
        let (before, limit) = (controller.limit(), controller.record(call));
        if limit != before {
            // Under the lock, so that the last word is the controller's. A floor of zero cannot be built.
            let _ = self.slots.resize(limit);
        }
    }
}

impl fmt::Debug for AdaptiveLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdaptiveLimit").field("slots", &self.slots).finish_non_exhaustive()
    }
}

/// A call in flight. Say how it ended; the slot is given back either way.
///
/// One that is dropped without a word is [ignored](Report::Ignored), which tells the controller nothing unless the call
/// was given up late (see [`Anchored`](tidegate_core::adaptive::Anchored)). One that is dropped by a panic has failed.
#[must_use = "dropping an attempt ends it"]
pub struct Attempt {
    limit: AdaptiveLimit,
    /// Given back before the controller hears of it, so that the next is not kept waiting.
    slot: Option<Slot>,
    in_flight: u32,
    start: Micros,
}

impl Attempt {
    /// It did what it should.
    pub fn succeed(self) {
        self.report(Report::Success);
    }

    /// It failed in a way that tells of overload: a timeout, a refusal, a dropped connection.
    pub fn fail(self) {
        self.report(Report::Failure);
    }

    /// It tells nothing about the backend.
    pub fn ignore(self) {
        self.report(Report::Ignored);
    }

    /// Ends it as told.
    pub fn report(mut self, report: Report) {
        self.end(report);
    }

    fn end(&mut self, report: Report) {
        if let Some(slot) = self.slot.take() {
            drop(slot);
            let end = self.limit.clock().now();
            self.limit.record(Call { start: self.start, end, in_flight: self.in_flight, report });
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.end(if thread::panicking() { Report::Failure } else { Report::Ignored });
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attempt(since {} of {:?})", self.start, self.limit)
    }
}
