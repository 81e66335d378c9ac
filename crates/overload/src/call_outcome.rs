//! The outcome of a call.

/// The outcome of a call. The caller decides which result is which.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// The call succeeded.
    Success,
    /// The call failed in a way that indicates trouble: an error, a timeout, a rejection because of overload.
    Failure,
    /// No evidence: the call was cancelled, or failed because of the caller.
    Ignored,
}

impl CallOutcome {
    /// Returns a success for `Ok` and a failure for `Err`.
    pub fn from_result<T, E>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Success,
            Err(_) => Self::Failure,
        }
    }
}
