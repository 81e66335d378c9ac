//! A slot that is held.

use crate::background;
use std::fmt;
use tidegate_engine::SharedPermit;

/// A slot, until it is dropped.
#[must_use = "dropping it gives the slot back"]
pub struct Hold {
    pub(crate) permit: Option<SharedPermit<'static>>,
    pub(crate) taken: Taken,
}

/// Where a slot was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    InMemory,
    InStore,
}

impl Hold {
    pub(crate) fn nothing() -> Self {
        Self { permit: None, taken: Taken::InMemory }
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
