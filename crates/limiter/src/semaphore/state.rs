//! The state of a semaphore in one word: the number of slots in use and of waiting callers.
//!
//! ```text
//!   63 ─────── 52 51 ─────────── 32 31 ──────────── 0
//!   other bits        waiting callers      slots in use
//! ```
//!
//! Both are in one word, because they must be read together: a release learns in the same operation whether a caller waits,
//! and a new caller cannot overtake the waiting ones.

use crate::sync::{AtomicU64, Ordering, SpinBackoff};

/// The most slots that a word can count.
pub(crate) const MAX_PERMITS: u64 = (1 << 32) - 1;
const ONE_WAITER: u64 = 1 << 32;
const WAITERS_MASK: u64 = ((1 << 20) - 1) << 32;

/// The position of a caller that acquires a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// Not in the queue: waiting callers go first.
    Unqueued,
    /// The first in the queue; leaves it with the slot.
    Front,
}

/// Whether a caller waits for a released slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasWaiters {
    /// At least one caller waits.
    Yes,
    /// No caller waits.
    No,
}

/// The number of slots in use.
pub(crate) fn in_flight(word: u64) -> u64 {
    word & MAX_PERMITS
}

/// Acquires `slots` of `limit`. Returns the new number of slots in use, or the current one on failure. `lock` is a bit of the
/// word that other threads set for a short time.
#[inline]
pub(crate) fn try_acquire(
    word: &AtomicU64,
    slots: u64,
    limit: u64,
    position: QueuePosition,
    lock: u64,
) -> Result<u64, u64> {
    let mut current = word.load(Ordering::Relaxed);
    let mut backoff = SpinBackoff::default();
    loop {
        let next = current.wrapping_add(slots).wrapping_sub(match position {
            QueuePosition::Unqueued => 0,
            QueuePosition::Front => ONE_WAITER,
        });
        let is_free = slots <= limit && in_flight(current) <= limit - slots;
        let is_next = position == QueuePosition::Front || current & WAITERS_MASK == 0;
        if current & lock != 0 {
            backoff.pause();
            current = word.load(Ordering::Relaxed);
        } else if !is_free || !is_next {
            return Err(in_flight(current));
        } else {
            match word.compare_exchange_weak(current, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(in_flight(next)),
                Err(now) => current = now,
            }
        }
    }
}

/// Releases `slots`.
#[inline]
pub(crate) fn release(word: &AtomicU64, slots: u64) -> HasWaiters {
    match word.fetch_sub(slots, Ordering::Release) & WAITERS_MASK {
        0 => HasWaiters::No,
        _ => HasWaiters::Yes,
    }
}

/// Adds a waiting caller.
pub(crate) fn add_waiter(word: &AtomicU64) {
    word.fetch_add(ONE_WAITER, Ordering::AcqRel);
}

/// Removes a waiting caller that leaves without a slot.
pub(crate) fn remove_waiter(word: &AtomicU64) {
    word.fetch_sub(ONE_WAITER, Ordering::Relaxed);
}

/// The number of waiting callers.
pub(crate) fn waiters(word: u64) -> u64 {
    (word & WAITERS_MASK) / ONE_WAITER
}
