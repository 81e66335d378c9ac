//! Whether a client transfers a body fast enough.
//!
//! ```text
//!   waited   ├──── timeout ────┤──── timeout ────┤      only the time for which the gateway waits for the client
//!   bytes        at least the minimum of each
//! ```
//!
//! A single pause may take the whole timeout. So a client cannot hold a connection with one byte per pause.

use crate::worker::WorkerSettings;

/// The transfer of one body in one direction. Times are in milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct TransferPace {
    /// The bytes since the last check that was passed, and the time for which the gateway waited.
    bytes: u64,
    waited: u64,
    /// The start of the current wait.
    since: Option<u64>,
}

/// The limits of a pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PaceLimits {
    pub(crate) timeout: u64,
    /// The bytes that must be transferred while the gateway waits for `timeout`.
    pub(crate) min_bytes: u64,
}

impl PaceLimits {
    /// Limits with a minimum rate in bytes per second.
    pub(crate) fn new(timeout: u64, min_rate: Option<u64>) -> Self {
        Self { timeout, min_bytes: min_rate.map_or(0, |rate| rate.saturating_mul(timeout) / 1_000) }
    }
}

impl TransferPace {
    /// Records transferred bytes.
    #[inline]
    pub(crate) fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Starts a wait for the client. Returns how long it may take.
    pub(crate) fn start_wait(&mut self, now: u64, limits: PaceLimits) -> u64 {
        if self.bytes >= limits.min_bytes {
            (self.bytes, self.waited) = (0, 0);
        }
        self.since = Some(now);
        limits.timeout.saturating_sub(self.waited)
    }

    /// Ends the wait.
    pub(crate) fn end_wait(&mut self, now: u64) {
        if let Some(since) = self.since.take() {
            self.waited = self.waited.saturating_add(now.saturating_sub(since));
        }
    }
}

impl WorkerSettings {
    /// The limits of bodies.
    pub(crate) fn pace_limits(&self) -> PaceLimits {
        PaceLimits::new(self.body_timeout, self.min_body_rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: PaceLimits = PaceLimits { timeout: 1_000, min_bytes: 100 };

    /// Transfers this number of bytes after each pause; returns the total time until the client is too slow.
    fn time_of(bytes: u64, pause: u64, limits: PaceLimits) -> Option<u64> {
        let (mut pace, mut now) = (TransferPace::default(), 0);
        for _ in 0..1_000 {
            let left = pace.start_wait(now, limits);
            if left < pause {
                return Some(now + left);
            }
            now += pause;
            pace.end_wait(now);
            pace.add_bytes(bytes);
        }
        None
    }

    #[test]
    fn slow_client_has_the_timeout_in_total() {
        assert_eq!(time_of(1, 100, LIMITS), Some(1_000));
        assert_eq!(time_of(9, 100, LIMITS), Some(1_000));
        assert_eq!(time_of(0, 2_000, LIMITS), Some(1_000));
    }

    #[test]
    fn client_at_the_minimum_rate_is_never_too_slow() {
        assert_eq!(time_of(10, 100, LIMITS), None);
        assert_eq!(time_of(100, 1_000, LIMITS), None);
        assert_eq!(time_of(1, 100, PaceLimits::new(1_000, None)), None);
        assert_eq!(time_of(1, 1_001, PaceLimits::new(1_000, None)), Some(1_000));
    }

    /// A fast start is no credit for a slow rest.
    #[test]
    fn fast_start_does_not_extend_the_timeout() {
        let mut pace = TransferPace::default();
        pace.add_bytes(1_000_000);
        assert_eq!(pace.start_wait(0, LIMITS), 1_000);
        pace.end_wait(900);
        pace.add_bytes(1);
        assert_eq!(pace.start_wait(900, LIMITS), 100);
    }
}
