//! Sliding log: stores the timestamps of the last `limit` tokens.
//!
//! ```text
//!        ◀────── window ──────▶
//!   ·  · │·   ··      ·   ·· ·│      a new one fits when the limit-th newest
//!   old  │      counted       now     has left the window
//! ```
//!
//! It is exact: never more than the limit in any window, and never a denial below the limit.
//!
//! Note the memory: one word per token of the limit, for every key. For large limits use `sliding-strict`, which
//! also never exceeds the limit, in `K + 1` words.

use super::{
    Algorithm, ChargeResult, Demand, LuaArgs, Receipt,
    window::{self, WindowAlgorithm, window_methods},
};
use crate::{
    bound::Bound,
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// The timestamps of the last `limit` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingLog {
    rate: Rate,
}

/// The words of state: the capacity of the ring (zero: unused key), the next slot, the number of filled slots, the
/// earliest time for a new token (so that a refund does not admit again after timestamps were overwritten), then
/// the ring of timestamps.
///
/// The ring never shrinks while it has content: a quota with a smaller limit reads the newest slots, and one with
/// a larger limit adds slots when it writes. So all of them find the timestamps that they need.
const CAPACITY: usize = 0;
const NEXT: usize = 1;
const LEN: usize = 2;
const EARLIEST: usize = 3;
const RING: usize = 4;

/// A log of 1 MiB per key; `sliding-strict` needs far less.
const MAX_LIMIT: u64 = 131_072;

impl SlidingLog {
    /// At most `rate.amount()` in any window of `rate.period()`, exactly.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        rate.validate()?;
        if rate.amount() > MAX_LIMIT {
            return Err(QuotaError::log_too_long(rate.amount(), MAX_LIMIT));
        }
        Ok(Self { rate })
    }

    /// The capacity of the ring, or that of a new one.
    fn capacity<W: AlgorithmState + ?Sized>(&self, state: &W) -> u64 {
        match state.get(CAPACITY) {
            0 => self.limit(),
            capacity => capacity,
        }
    }

    /// The timestamp of the token with `newer` others after it.
    fn timestamp<W: AlgorithmState + ?Sized>(&self, state: &W, newer: u64) -> Micros {
        Micros::new(state.get(self.slot(state, newer)))
    }

    fn slot<W: AlgorithmState + ?Sized>(&self, state: &W, newer: u64) -> usize {
        let capacity = self.capacity(state);
        RING + ((state.get(NEXT) + capacity - 1 - newer) % capacity) as usize
    }

    /// Grows the ring to the limit of this quota and moves the oldest timestamp to the start.
    fn grow<W: AlgorithmState + ?Sized>(&self, state: &mut W) {
        let capacity = state.get(CAPACITY);
        if capacity >= self.limit() {
            return;
        }
        let (all, filled) = (capacity as usize, state.get(LEN));
        let oldest = if all == 0 { 0 } else { ((state.get(NEXT) + capacity - filled) % capacity) as usize };
        if oldest > 0 {
            // Three reversals rotate the ring in place.
            for (from, to) in [(0, oldest), (oldest, all), (0, all)] {
                for offset in 0..(to - from) / 2 {
                    let (left, right) = (RING + from + offset, RING + to - 1 - offset);
                    let moved = state.get(left);
                    state.set(left, state.get(right));
                    state.set(right, moved);
                }
            }
        }
        state.set(NEXT, filled);
        state.set(CAPACITY, self.limit());
    }

    /// The number of tokens that still count at `at`. Timestamps are sorted, so a binary search finds the oldest.
    fn count_used<W: AlgorithmState + ?Sized>(&self, state: &W, at: Micros) -> u64 {
        let (mut counted, mut gone) = (0, state.get(LEN));
        while counted < gone {
            let middle = counted + (gone - counted) / 2;
            if self.timestamp(state, middle).saturating_add(self.rate.period()) > at {
                counted = middle + 1;
            } else {
                gone = middle;
            }
        }
        counted
    }
}

impl WindowAlgorithm for SlidingLog {
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros {
        let at = now.max(Micros::new(state.get(EARLIEST)));
        let max_used = self.limit() - cost;
        if cost == 0 || state.get(LEN) <= max_used {
            return at;
        }
        at.max(self.timestamp(state, max_used).saturating_add(self.rate.period()))
    }

    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        self.grow(state);
        let (capacity, next) = (state.get(CAPACITY), state.get(NEXT));
        for offset in 0..cost {
            state.set(RING + ((next + offset) % capacity) as usize, at.get());
        }
        state.set(NEXT, (next + cost) % capacity);
        state.set(LEN, (state.get(LEN) + cost).min(capacity));
        state.set(EARLIEST, at.get());
    }

    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        if state.get(EARLIEST) > now.get() {
            return 0;
        }
        self.limit().saturating_sub(self.count_used(state, now))
    }

    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros {
        match state.get(LEN) {
            0 => Micros::new(state.get(EARLIEST)),
            _ => self
                .timestamp(state, 0)
                .saturating_add(self.rate.period())
                .max(Micros::new(state.get(EARLIEST))),
        }
    }
}

impl Algorithm for SlidingLog {
    const NAMES: &'static [&'static str] = &["sliding-log"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, window::LUA, include_str!("sliding_log.lua")];

    window_methods!();

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        [self.limit() as f64, self.rate.period().get() as f64, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, _reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        Self::new(rate)
    }

    fn state_len(&self) -> usize {
        RING + self.limit() as usize
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 0, 0)
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, _now: Micros, receipt: Receipt, cost: u64) {
        // Find the tokens of the receipt, then move the newer ones over the gap.
        let filled = state.get(LEN);
        let Some(first) = (0..filled).find(|&newer| self.timestamp(state, newer) <= receipt.at) else {
            return;
        };
        let ours = (first..filled).take_while(|&newer| self.timestamp(state, newer) == receipt.at);
        let removed = cost.min(ours.count() as u64);
        for newer in (removed..first + removed).rev() {
            let moved = self.timestamp(state, newer - removed);
            state.set(self.slot(state, newer), moved.get());
        }
        let capacity = self.capacity(state);
        state.set(NEXT, (state.get(NEXT) + capacity - removed) % capacity);
        state.set(LEN, filled - removed);
    }

    /// Timestamps are valid under any limit; only those of the same period are stored.
    fn shares_state(&self, other: &Self) -> bool {
        self.rate.period() == other.rate.period()
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sliding-log", self.rate)
    }
}
