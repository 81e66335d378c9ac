//! Why a polite client has no answer.

use std::{error, fmt, time::Duration};
use tidegate_core::Micros;
use tidegate_rule::Limited;

/// Why there is no answer: the call was not made, or it failed with an `E`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetryAfterError<E> {
    /// Our own rule refused; the call was not made.
    Limited(Limited),
    /// The server said to come back later than this client is willing to wait; the call was not made.
    Backoff {
        /// The server, or whatever names it.
        server: Box<str>,
        /// For how long yet.
        wait: Duration,
    },
    /// The call was made, and failed.
    Failed(E),
}

impl<E> RetryAfterError<E> {
    /// When it is worth trying again, if that is known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(limited) => limited.retry_after(),
            Self::Backoff { wait, .. } => Some(*wait),
            Self::Failed(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for RetryAfterError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::Backoff { server, wait } => {
                let wait = Micros::from(*wait).rounded();
                write!(f, "`{server}` asked not to be called for another {wait}")
            }
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: error::Error + 'static> error::Error for RetryAfterError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Limited(limited) => Some(limited),
            Self::Backoff { .. } => None,
            // It prints as what it stands for, and so goes on with what is behind that.
            Self::Failed(error) => error.source(),
        }
    }
}
