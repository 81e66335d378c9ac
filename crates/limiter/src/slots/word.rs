//! Slots in one word: how many are held, and how many callers wait for one.
//!
//! ```text
//!   63 ─────── 52 51 ─────────── 32 31 ──────────── 0
//!   not for slots    callers that wait    slots that are held
//! ```
//!
//! Both in one word, because each must be seen with the other: whoever gives a slot back learns in the same step whether
//! somebody waits for it, and a newcomer cannot slip past those who wait.

use crate::sync::{AtomicU64, Backoff, Ordering};

/// The most slots that a word can count.
pub(crate) const MOST_SLOTS: u64 = (1 << 32) - 1;
const WAITER: u64 = 1 << 32;
const WAITERS: u64 = ((1 << 20) - 1) << 32;

/// Who asks for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Somebody who does not wait: those who do go first.
    Newcomer,
    /// The first in line, who leaves it with the slot.
    FirstInLine,
}

/// Whether somebody waits for what was given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// Somebody waits.
    Yes,
    /// Nobody waits.
    No,
}

/// How many slots are held.
pub(crate) fn held(word: u64) -> u64 {
    word & MOST_SLOTS
}

/// Takes `slots` of `limit`; says how many are held then, or how many are held already. `lock` is a bit of the word
/// that others set for a moment.
#[inline]
pub(crate) fn take(word: &AtomicU64, slots: u64, limit: u64, turn: Turn, lock: u64) -> Result<u64, u64> {
    let mut seen = word.load(Ordering::Relaxed);
    let mut backoff = Backoff::default();
    loop {
        let next = seen.wrapping_add(slots).wrapping_sub(match turn {
            Turn::Newcomer => 0,
            Turn::FirstInLine => WAITER,
        });
        let is_free = slots <= limit && held(seen) <= limit - slots;
        let is_its_turn = turn == Turn::FirstInLine || seen & WAITERS == 0;
        if seen & lock != 0 {
            backoff.pause();
            seen = word.load(Ordering::Relaxed);
        } else if !is_free || !is_its_turn {
            return Err(held(seen));
        } else {
            match word.compare_exchange_weak(seen, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(held(next)),
                Err(now) => seen = now,
            }
        }
    }
}

/// Gives `slots` back.
#[inline]
pub(crate) fn give_back(word: &AtomicU64, slots: u64) -> Awaited {
    match word.fetch_sub(slots, Ordering::Release) & WAITERS {
        0 => Awaited::No,
        _ => Awaited::Yes,
    }
}

/// Counts one more caller that waits.
pub(crate) fn enter_line(word: &AtomicU64) {
    word.fetch_add(WAITER, Ordering::AcqRel);
}

/// Counts one caller less that waits, who leaves with empty hands.
pub(crate) fn leave_line(word: &AtomicU64) {
    word.fetch_sub(WAITER, Ordering::Relaxed);
}

/// How many callers wait.
pub(crate) fn waiting(word: u64) -> u64 {
    (word & WAITERS) / WAITER
}
