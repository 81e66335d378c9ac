//! Slots in one word: how many are held, and how many callers wait for one.
//!
//! ```text
//!   63 ─────── 52 51 ─────────── 32 31 ──────────── 0
//!   not for slots    callers that wait    slots that are held
//! ```
//!
//! Both in one word, because each must be seen with the other: whoever gives a slot back learns in the same step whether
//! somebody waits for it, and a newcomer cannot slip past those who wait.

use crate::sync::{AtomicU64, Ordering, SpinBackoff};

/// The most slots that a word can count.
pub(crate) const MAX_PERMITS: u64 = (1 << 32) - 1;
const ONE_WAITER: u64 = 1 << 32;
const WAITERS_MASK: u64 = ((1 << 20) - 1) << 32;

/// Who asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePosition {
    /// Somebody who does not wait: those who do go first.
    Unqueued,
    /// The first in line, who leaves it with the slot.
    Front,
}

/// Whether somebody waits for what was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HasWaiters {
    /// Somebody waits.
    Yes,
    /// Nobody waits.
    No,
}

/// How many slots are held.
pub(crate) fn in_flight(word: u64) -> u64 {
    word & MAX_PERMITS
}

/// Takes `slots` of `limit`; says how many are held then, or how many are held already. `lock` is a bit of the word
/// that others set for a moment.
#[inline]
pub(crate) fn try_acquire(
    word: &AtomicU64,
    slots: u64,
    limit: u64,
    position: QueuePosition,
    lock: u64,
) -> Result<u64, u64> {
    let mut seen = word.load(Ordering::Relaxed);
    let mut backoff = SpinBackoff::default();
    loop {
        let next = seen.wrapping_add(slots).wrapping_sub(match position {
            QueuePosition::Unqueued => 0,
            QueuePosition::Front => ONE_WAITER,
        });
        let is_free = slots <= limit && in_flight(seen) <= limit - slots;
        let is_its_turn = position == QueuePosition::Front || seen & WAITERS_MASK == 0;
        if seen & lock != 0 {
            backoff.pause();
            seen = word.load(Ordering::Relaxed);
        } else if !is_free || !is_its_turn {
            return Err(in_flight(seen));
        } else {
            match word.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(in_flight(next)),
                Err(now) => seen = now,
            }
        }
    }
}

/// Gives `slots` back.
#[inline]
pub(crate) fn release(word: &AtomicU64, slots: u64) -> HasWaiters {
    match word.fetch_sub(slots, Ordering::Release) & WAITERS_MASK {
        0 => HasWaiters::No,
        _ => HasWaiters::Yes,
    }
}

/// Counts one more caller that waits.
pub(crate) fn add_waiter(word: &AtomicU64) {
    word.fetch_add(ONE_WAITER, Ordering::AcqRel);
}

/// Counts one caller less that waits, who leaves with empty hands.
pub(crate) fn remove_waiter(word: &AtomicU64) {
    word.fetch_sub(ONE_WAITER, Ordering::Relaxed);
}

/// How many callers wait.
pub(crate) fn waiters(word: u64) -> u64 {
    (word & WAITERS_MASK) / ONE_WAITER
}
