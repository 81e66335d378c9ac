//! A slot that is held.

use crate::background;
use std::fmt;
use tidegate_core::Decision;
use tidegate_engine::SharedPermit;

/// A slot, until it is dropped.
#[must_use = "dropping it gives the slot back"]
pub struct Hold {
    permit: Option<SharedPermit<'static>>,
    taken: Taken,
}

/// Where a slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    InMemory,
    InStore,
}

impl Hold {
    /// One that holds nothing.
    pub(crate) fn nothing() -> Self {
        Self { permit: None, taken: Taken::InMemory }
    }

    /// A slot in this process.
    pub(crate) fn in_memory(permit: SharedPermit<'static>) -> Self {
        Self { permit: Some(permit), taken: Taken::InMemory }
    }

    /// A slot in a store.
    pub(crate) fn in_store(permit: SharedPermit<'static>) -> Self {
        Self { permit: Some(permit), taken: Taken::InStore }
    }

    /// Why there is no slot, if there is none.
    pub(crate) fn denial(&self) -> Option<&Decision> {
        self.permit.as_ref().map(SharedPermit::decision).filter(|decision| !decision.is_granted())
    }
}

/// A slot in a store is given back by our own thread: the runtime of the caller may be about to end.
impl Drop for Hold {
    fn drop(&mut self) {
        let permit = self.permit.take();
        if self.taken == Taken::InStore {
            background::enter(|| drop(permit));
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
