//! How many at once, and who may wait.

use super::{
    judge::Until,
    terms::{Terms, with_terms},
};
use crate::request::Head;
use std::{fmt, sync::Arc, time::Duration};
use tidegate_limiter::{Semaphore, SemaphorePermit, WaitPriority, Waiter};
use tidegate_overload::{Cause, Rejection};

/// So many requests at once. Each holds its slot until the body of its answer has ended, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::Slots;
/// use tidegate_rule::surface::RequestSlots;
///
/// let slots = Slots::builder().max_waiters(200).build(64)?;
/// let count_statuses = RequestSlots::new(slots).wait(Duration::from_millis(500));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`. Clones share the slots, and so does what
/// else uses them.
#[derive(Clone)]
pub struct RequestSlots {
    slots: Semaphore,
    patience: Duration,
    priority: Option<Arc<PriorityOf>>,
    terms: Arc<Terms>,
}

type PriorityOf = dyn Fn(&dyn Head) -> WaitPriority + Send + Sync;

impl RequestSlots {
    /// As many as there are slots. Nobody waits unless told otherwise.
    pub fn new(slots: Semaphore) -> Self {
        let terms = Terms { until: Until::Body, ..Terms::new("concurrency") };
        Self { slots, patience: Duration::ZERO, priority: None, terms: Arc::new(terms) }
    }

    /// How long a request may wait in line for a slot. The line has as many places as the slots say.
    #[must_use]
    pub fn wait(self, longest: Duration) -> Self {
        Self { patience: longest, ..self }
    }

    /// Who of those in line goes first; whoever came first unless told otherwise.
    #[must_use]
    pub fn priority(self, priority: impl Fn(&dyn Head) -> WaitPriority + Send + Sync + 'static) -> Self {
        Self { priority: Some(Arc::new(priority)), ..self }
    }

    with_terms!();

    /// Takes a slot for this request, or a place in line if it may wait.
    pub fn turn(&self, head: &dyn Head) -> Turn {
        if let Some(slot) = self.slots.try_acquire_owned() {
            return Turn::Now(Ok(slot));
        }
        if self.patience.is_zero() {
            return Turn::Now(Err(Rejection::Full.into()));
        }
        let priority = self.priority.as_ref().map(|priority| priority(head)).unwrap_or_default();
        let waiter = Waiter::new(1).deadline(self.patience).priority(priority);
        Turn::Later(InLine { slots: self.slots.clone(), waiter })
    }
}

/// When it is a request's turn.
#[derive(Debug)]
pub enum Turn {
    /// Now, or never: there is no slot, and it may not wait.
    Now(Result<SemaphorePermit, Cause>),
    /// After those before it.
    Later(InLine),
}

/// A request that waits for a slot.
#[derive(Debug)]
pub struct InLine {
    slots: Semaphore,
    waiter: Waiter,
}

impl InLine {
    /// Its slot, when it is its turn. It is in line from the first poll on; dropping the future leaves the line.
    pub async fn slot(self) -> Result<SemaphorePermit, Cause> {
        self.slots.acquire_owned(self.waiter).await.map_err(Cause::from)
    }
}

impl From<Semaphore> for RequestSlots {
    fn from(slots: Semaphore) -> Self {
        Self::new(slots)
    }
}

impl fmt::Debug for RequestSlots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slots, patience, terms, .. } = self;
        f.debug_tuple("RequestSlots").field(slots).field(patience).field(terms).finish()
    }
}
