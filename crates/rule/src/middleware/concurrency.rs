//! A concurrency limit on requests.

use super::{
    classify::InFlightEnd,
    options::{MiddlewareOptions, option_methods},
};
use crate::request::RequestHead;
use std::{fmt, sync::Arc, time::Duration};
use tidegate_limiter::{Semaphore, SemaphorePermit, WaitPriority, Waiter};
use tidegate_overload::{CallError, Rejection};

/// Limits requests in flight. Each holds its slot until the body of its response has ended or was dropped.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Semaphore;
/// use tidegate_rule::middleware::RequestConcurrency;
///
/// let slots = Semaphore::builder().max_waiters(200).build(64)?;
/// let concurrency = RequestConcurrency::new(slots).wait(Duration::from_millis(500));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For a limit per client, use a rule with a quota such as `3 at once`. Clones share the slots, also with
/// other users of the semaphore.
#[derive(Clone)]
pub struct RequestConcurrency {
    semaphore: Semaphore,
    max_wait: Duration,
    priority: Option<Arc<SlotPriorityFn>>,
    options: Arc<MiddlewareOptions>,
}

type SlotPriorityFn = dyn Fn(&dyn RequestHead) -> WaitPriority + Send + Sync;

impl RequestConcurrency {
    /// Creates a limit with the slots of the semaphore. Requests do not wait by default.
    pub fn new(semaphore: Semaphore) -> Self {
        let options =
            MiddlewareOptions { in_flight_end: InFlightEnd::Body, ..MiddlewareOptions::new("concurrency") };
        Self { semaphore, max_wait: Duration::ZERO, priority: None, options: Arc::new(options) }
    }

    /// Sets how long a request may wait for a slot. The semaphore limits the number of waiters.
    #[must_use]
    pub fn wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }

    /// Sets the priority of a waiting request; first come, first served by default.
    #[must_use]
    pub fn priority(
        self,
        priority: impl Fn(&dyn RequestHead) -> WaitPriority + Send + Sync + 'static,
    ) -> Self {
        Self { priority: Some(Arc::new(priority)), ..self }
    }

    option_methods!();

    /// Acquires a slot for this request, or enters the wait queue if it may wait.
    pub fn acquire(&self, head: &dyn RequestHead) -> PermitAcquisition {
        if let Some(permit) = self.semaphore.try_acquire_owned() {
            return PermitAcquisition::Ready(Ok(permit));
        }
        if self.max_wait.is_zero() {
            return PermitAcquisition::Ready(Err(Rejection::ConcurrencyLimitReached.into()));
        }
        let priority = self.priority.as_ref().map(|priority| priority(head)).unwrap_or_default();
        let waiter = Waiter::new(1).deadline(self.max_wait).priority(priority);
        PermitAcquisition::Waiting(ConcurrencyWait { semaphore: self.semaphore.clone(), waiter })
    }
}

/// The result of acquiring a slot.
#[derive(Debug)]
pub enum PermitAcquisition {
    /// A slot, or an error: there is no slot, and the request may not wait.
    Ready(Result<SemaphorePermit, CallError>),
    /// The request must wait for a slot.
    Waiting(ConcurrencyWait),
}

/// A request that waits for a slot.
#[derive(Debug)]
pub struct ConcurrencyWait {
    semaphore: Semaphore,
    waiter: Waiter,
}

impl ConcurrencyWait {
    /// Waits for the slot. The request is in the queue from the first poll on; dropping the future leaves the
    /// queue.
    pub async fn wait(self) -> Result<SemaphorePermit, CallError> {
        self.semaphore.acquire_owned(self.waiter).await.map_err(CallError::from)
    }
}

impl From<Semaphore> for RequestConcurrency {
    fn from(semaphore: Semaphore) -> Self {
        Self::new(semaphore)
    }
}

impl fmt::Debug for RequestConcurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { semaphore, max_wait, options, .. } = self;
        f.debug_tuple("RequestConcurrency").field(semaphore).field(max_wait).field(options).finish()
    }
}
