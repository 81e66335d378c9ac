//! How a call ended, in the eyes of a controller.

/// How a call ended. What counts as which is for the caller to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallOutcome {
    /// It did what it should.
    Success,
    /// It failed in a way that tells of trouble: an error, a timeout, a refusal because of overload.
    Failure,
    /// It tells nothing: it was cancelled, or failed by the caller's own fault.
    Ignored,
}

impl CallOutcome {
    /// A success or a failure, as a result is `Ok` or `Err`.
    pub fn from_result<T, E>(result: &Result<T, E>) -> Self {
        match result {
            Ok(_) => Self::Success,
            Err(_) => Self::Failure,
        }
    }
}
