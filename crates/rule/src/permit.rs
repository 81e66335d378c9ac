//! A permit of a rule.

use std::fmt;
use tidegate_core::Decision;
use tidegate_limiter::{Permit, background};

/// A slot; dropping it releases the slot.
#[must_use = "dropping it releases the slot"]
pub struct RulePermit {
    permit: Option<Permit>,
}

impl RulePermit {
    /// Creates a permit without a slot.
    pub(crate) fn empty() -> Self {
        Self { permit: None }
    }

    pub(crate) fn new(permit: Permit) -> Self {
        Self { permit: Some(permit) }
    }

    /// The denial, if there is no slot.
    pub(crate) fn denial(&self) -> Option<&Decision> {
        self.permit.as_ref().map(Permit::decision).filter(|decision| !decision.is_granted())
    }
}

/// A slot in a store is released on our own thread: the runtime of the caller may be about to end.
impl Drop for RulePermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take_if(|permit| permit.is_in_store()) {
            background::enter(|| drop(permit));
        }
    }
}

impl fmt::Debug for RulePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RulePermit")
    }
}
