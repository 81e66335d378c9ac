//! Errors of a client with a `RetryAfterLayer`.

use std::{error, fmt, time::Duration};
use tidegate_core::Micros;
use tidegate_rule::Limited;

/// The backoff that a server requested.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerBackoff {
    /// The server, or the configured key.
    pub server: Box<str>,
    /// The remaining backoff.
    pub wait: Duration,
}

impl fmt::Display for ServerBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = Micros::from(self.wait).rounded();
        write!(f, "`{}` requested a backoff; next call allowed in {wait}", self.server)
    }
}

impl error::Error for ServerBackoff {}

/// The call was not made, or it failed with an `E`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RetryAfterError<E> {
    /// The rule of the client denied the call; it was not made.
    Limited(Limited),
    /// The server requested a longer backoff than [`max_wait`](crate::RetryAfterLayer::max_wait); the call was not made.
    Backoff(ServerBackoff),
    /// The call was made and failed.
    Failed(E),
}

impl<E> RetryAfterError<E> {
    /// Returns the time until a retry can succeed, if known.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Limited(limited) => limited.retry_after(),
            Self::Backoff(backoff) => Some(backoff.wait),
            Self::Failed(_) => None,
        }
    }
}

impl<E: fmt::Display> fmt::Display for RetryAfterError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::Backoff(backoff) => backoff.fmt(f),
            Self::Failed(error) => error.fmt(f),
        }
    }
}

impl<E: error::Error + 'static> error::Error for RetryAfterError<E> {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Limited(limited) => Some(limited),
            Self::Backoff(backoff) => Some(backoff),
            // `Display` prints the inner error, so its source is the next one.
            Self::Failed(error) => error.source(),
        }
    }
}
