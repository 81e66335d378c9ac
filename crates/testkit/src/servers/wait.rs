//! Waiting for other processes, which no clock of ours can hurry.

use std::{thread, time::Duration};

const POLL_INTERVAL: Duration = Duration::from_millis(5);
const MAX_ATTEMPTS: u32 = 4_000;

/// Asks again and again until the answer is `Ok`, for some twenty seconds at most.
///
/// The error says what did not happen, and why it had not when it was asked for the last time.
pub fn wait_until<T>(what: &str, mut ask: impl FnMut() -> Result<T, String>) -> Result<T, String> {
    for _ in 1..MAX_ATTEMPTS {
        if let Ok(answer) = ask() {
            return Ok(answer);
        }
        sleep();
    }
    ask().map_err(|problem| format!("waited in vain until {what}: {problem}"))
}

#[allow(clippy::disallowed_methods, reason = "another process does not announce that it is ready")]
fn sleep() {
    thread::sleep(POLL_INTERVAL);
}
