//! Permits of a rule.

use std::{fmt, sync::Arc};
use tidegate_core::Decision;
use tidegate_limiter::{Permit, background};
use tidegate_overload::{CallOutcome, CallPermit, error_rate::KeyedErrorRate};

/// A call whose outcome may be recorded. Dropping it records no outcome.
#[derive(Debug, Default)]
#[must_use = "dropping it records no outcome"]
pub struct CountedCall(Option<CallPermit<Arc<KeyedErrorRate>>>);

impl CountedCall {
    pub(crate) fn new(permit: Option<CallPermit<Arc<KeyedErrorRate>>>) -> Self {
        Self(permit)
    }

    /// Records the outcome, if outcomes are recorded.
    #[inline]
    pub fn record(self, outcome: CallOutcome) {
        if let Some(permit) = self.0 {
            permit.record(outcome);
        }
    }
}

/// A slot; dropping it releases the slot.
#[must_use = "dropping it releases the slot"]
pub struct RulePermit {
    permit: Option<Permit>,
    counted: CountedCall,
}

impl RulePermit {
    /// Creates a permit without a slot.
    pub(crate) fn empty() -> Self {
        Self { permit: None, counted: CountedCall::default() }
    }

    pub(crate) fn new(permit: Permit) -> Self {
        Self { permit: Some(permit), counted: CountedCall::default() }
    }

    pub(crate) fn with_call(mut self, counted: CountedCall) -> Self {
        self.counted = counted;
        self
    }

    /// The call, to record its outcome. The slot stays in use.
    pub fn take_call(&mut self) -> CountedCall {
        std::mem::take(&mut self.counted)
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
