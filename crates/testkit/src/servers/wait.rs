//! Waiting for other processes, which do not follow a manual clock.

use std::{thread, time::Duration};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_ATTEMPTS: u32 = 4_000;

/// Polls a condition until it is `Ok`, for about twenty seconds.
///
/// # Errors
///
/// Returns `what` and the last error of the condition after the timeout.
pub fn wait_until<T>(what: &str, mut condition: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for _ in 1..MAX_ATTEMPTS {
        if let Ok(value) = condition() {
            return Ok(value);
        }
        sleep();
    }
    condition().map_err(|problem| format!("timed out waiting until {what}: {problem}"))
}

#[allow(clippy::disallowed_methods, reason = "another process does not announce that it is ready")]
fn sleep() {
    thread::sleep(POLL_INTERVAL);
}
