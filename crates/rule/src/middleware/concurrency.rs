//! How many at once, and who may wait.

use super::{
    classify::InFlightEnd,
    options::{MiddlewareOptions, option_methods},
};
use crate::request::RequestHead;
use std::{fmt, sync::Arc, time::Duration};
use tidegate_limiter::{Semaphore, SemaphorePermit, WaitPriority, Waiter};
use tidegate_overload::{CallError, Rejection};

/// So many requests at once. Each holds its slot until the body of its answer has ended, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Semaphore;
/// use tidegate_rule::middleware::RequestConcurrency;
///
/// let slots = Semaphore::builder().max_waiters(200).build(64)?;
/// let at_once = RequestConcurrency::new(slots).wait(Duration::from_millis(500));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`. Clones share the slots, and so does what
/// else uses them.
#[derive(Clone)]
pub struct RequestConcurrency {
    slots: Semaphore,
    max_wait: Duration,
    priority: Option<Arc<SlotPriorityFn>>,
    options: Arc<MiddlewareOptions>,
}

type SlotPriorityFn = dyn Fn(&dyn RequestHead) -> WaitPriority + Send + Sync;

impl RequestConcurrency {
    /// As many as there are slots. Nobody waits unless told otherwise.
    pub fn new(slots: Semaphore) -> Self {
        let terms =
            MiddlewareOptions { in_flight_end: InFlightEnd::Body, ..MiddlewareOptions::new("concurrency") };
        Self { slots, max_wait: Duration::ZERO, priority: None, options: Arc::new(terms) }
    }

    /// How long a request may wait in line for a slot. The line has as many places as the slots say.
    #[must_use]
    pub fn wait(self, longest: Duration) -> Self {
        Self { max_wait: longest, ..self }
    }

    /// Who of those in line goes first; whoever came first unless told otherwise.
    #[must_use]
    pub fn priority(
        self,
        priority: impl Fn(&dyn RequestHead) -> WaitPriority + Send + Sync + 'static,
    ) -> Self {
        Self { priority: Some(Arc::new(priority)), ..self }
    }

    option_methods!();

    /// Takes a slot for this request, or a place in line if it may wait.
    pub fn acquire(&self, head: &dyn RequestHead) -> SlotAcquisition {
        if let Some(slot) = self.slots.try_acquire_owned() {
            return SlotAcquisition::Ready(Ok(slot));
        }
        if self.max_wait.is_zero() {
            return SlotAcquisition::Ready(Err(Rejection::Full.into()));
        }
        let priority = self.priority.as_ref().map(|priority| priority(head)).unwrap_or_default();
        let waiter = Waiter::new(1).deadline(self.max_wait).priority(priority);
        SlotAcquisition::Waiting(SlotWait { slots: self.slots.clone(), waiter })
    }
}

/// When it is a request's turn.
#[derive(Debug)]
pub enum SlotAcquisition {
    /// Now, or never: there is no slot, and it may not wait.
    Ready(Result<SemaphorePermit, CallError>),
    /// After those before it.
    Waiting(SlotWait),
}

/// A request that waits for a slot.
#[derive(Debug)]
pub struct SlotWait {
    slots: Semaphore,
    waiter: Waiter,
}

impl SlotWait {
    /// Its slot, when it is its turn. It is in line from the first poll on; dropping the future leaves the line.
    pub async fn wait(self) -> Result<SemaphorePermit, CallError> {
        self.slots.acquire_owned(self.waiter).await.map_err(CallError::from)
    }
}

impl From<Semaphore> for RequestConcurrency {
    fn from(slots: Semaphore) -> Self {
        Self::new(slots)
    }
}

impl fmt::Debug for RequestConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, max_wait: patience, options: terms, .. } = self;
        f.debug_tuple("RequestSlots").field(slots).field(patience).field(terms).finish()
    }
}
