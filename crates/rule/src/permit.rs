//! A slot that is held.

use std::fmt;
use tidegate_core::Decision;
use tidegate_limiter::{Permit, background};

/// A slot, until it is dropped.
#[must_use = "dropping it gives the slot back"]
pub struct RulePermit {
    permit: Option<Permit>,
}

impl RulePermit {
    /// One that holds nothing.
    pub(crate) fn empty() -> Self {
        Self { permit: None }
    }

    pub(crate) fn new(permit: Permit) -> Self {
        Self { permit: Some(permit) }
    }

    /// Why there is no slot, if there is none.
    pub(crate) fn denial(&self) -> Option<&Decision> {
        self.permit.as_ref().map(Permit::decision).filter(|decision| !decision.is_granted())
    }
}

/// A slot in a store is given back by our own thread: the runtime of the caller may be about to end.
impl Drop for RulePermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take_if(|permit| permit.is_in_store()) {
            background::enter(|| drop(permit));
        }
    }
}

impl fmt::Debug for RulePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hold")
    }
}
