//! Permits of a rule.

use std::{fmt, sync::Arc};
use tidegate_core::Decision;
use tidegate_limiter::{Permit, background};
use tidegate_overload::{CallOutcome, CallPermit, error_rate::KeyedErrorRate};

/// A started call whose outcome may be recorded. Dropping it records a failure during a panic or by a time limit, and otherwise
/// no outcome.
#[derive(Debug, Default)]
#[must_use = "its outcome must be recorded"]
pub struct CountedCall(Option<CallPermit<Arc<KeyedErrorRate>>>);

impl CountedCall {
    /// Records the outcome, if outcomes are recorded.
    #[inline]
    pub fn record(self, outcome: CallOutcome) {
        if let Some(permit) = self.0 {
            permit.record(outcome);
        }
    }
}

/// A call that is not admitted yet, or has not started. Dropping it records no outcome, also by a time limit: the call was not
/// made.
#[derive(Debug, Default)]
#[must_use = "dropping it records no outcome"]
pub(crate) struct PendingCall(CountedCall);

impl PendingCall {
    pub(crate) fn new(permit: Option<CallPermit<Arc<KeyedErrorRate>>>) -> Self {
        Self(CountedCall(permit))
    }

    /// Starts the call.
    pub(crate) fn start(mut self) -> CountedCall {
        std::mem::take(&mut self.0)
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(permit) = self.0.0.take() {
            permit.ignore();
        }
    }
}

/// A slot; dropping it releases the slot.
#[must_use = "dropping it releases the slot"]
pub struct RulePermit {
    permit: Option<Permit>,
    pending: PendingCall,
}

impl RulePermit {
    /// Creates a permit without a slot.
    pub(crate) fn empty() -> Self {
        Self { permit: None, pending: PendingCall::default() }
    }

    pub(crate) fn new(permit: Permit) -> Self {
        Self { permit: Some(permit), pending: PendingCall::default() }
    }

    pub(crate) fn with_call(mut self, pending: PendingCall) -> Self {
        self.pending = pending;
        self
    }

    /// Starts the call, and returns it to record its outcome. The slot stays in use.
    pub fn take_call(&mut self) -> CountedCall {
        std::mem::take(&mut self.pending).start()
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
