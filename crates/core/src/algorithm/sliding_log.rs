//! Sliding log: remember when each of the last `limit` tokens went.
//!
//! ```text
//!        ◀────── window ──────▶
//!   ·  · │·   ··      ·   ·· ·│      a new one fits when the limit-th newest
//!    gone│      kept          now     has left the window
//! ```
//!
//! Exact in both directions: never more than the limit in any window, and never a denial while there is room.
//!
//! Its surprise is memory: one word per token of the limit, for every key. For large limits take
//! `sliding-strict`, which keeps the same promise in `K + 1` words.

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

/// The exact moments of the last `limit` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingLog {
    rate: Rate,
}

/// Words of state: the places in the ring (zero: never seen), the next of them, how many are filled, a moment before which
/// nothing may be placed (a refund must not uncover what a later place overwrote), then the ring of moments.
///
/// A ring keeps its places while it says anything: a quota with a smaller limit reads the newest of them, and one with a larger
/// limit adds places when it writes. So the moments that any of them needs are there.
const CAPACITY: usize = 0;
const NEXT: usize = 1;
const LEN: usize = 2;
const EARLIEST: usize = 3;
const RING: usize = 4;

/// A key's log would be 1 MiB; `sliding-strict` keeps the same promise in far less.
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

    /// The places of the ring that a state has, or would get.
    fn capacity<W: AlgorithmState + ?Sized>(&self, state: &W) -> u64 {
        match state.get(CAPACITY) {
            0 => self.limit(),
            places => places,
        }
    }

    /// The moment of the token with `newer` others after it.
    fn timestamp<W: AlgorithmState + ?Sized>(&self, state: &W, newer: u64) -> Micros {
        Micros::new(state.get(self.slot(state, newer)))
    }

    fn slot<W: AlgorithmState + ?Sized>(&self, state: &W, newer: u64) -> usize {
        let places = self.capacity(state);
        RING + ((state.get(NEXT) + places - 1 - newer) % places) as usize
    }

    /// Gives the ring at least as many places as this quota needs, the oldest moment first.
    fn grow<W: AlgorithmState + ?Sized>(&self, state: &mut W) {
        let places = state.get(CAPACITY);
        if places >= self.limit() {
            return;
        }
        let (all, filled) = (places as usize, state.get(LEN));
        let oldest = if all == 0 { 0 } else { ((state.get(NEXT) + places - filled) % places) as usize };
        if oldest > 0 {
            // Three times reversed is turned round: the oldest comes first.
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

    /// How many tokens still count at `at`: moments only grow, so the newest of them are a prefix.
    fn count_used<W: AlgorithmState + ?Sized>(&self, state: &W, at: Micros) -> u64 {
        let (mut counted, mut gone) = (0, state.get(LEN));
        while counted < gone {
            let middle = counted + (gone - counted) / 2;
            if self.timestamp(state, middle).plus(self.rate.period()) > at {
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
        let may_stay = self.limit() - cost;
        if cost == 0 || state.get(LEN) <= may_stay {
            return at;
        }
        at.max(self.timestamp(state, may_stay).plus(self.rate.period()))
    }

    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        self.grow(state);
        let (places, next) = (state.get(CAPACITY), state.get(NEXT));
        for offset in 0..cost {
            state.set(RING + ((next + offset) % places) as usize, at.get());
        }
        state.set(NEXT, (next + cost) % places);
        state.set(LEN, (state.get(LEN) + cost).min(places));
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
            _ => self.timestamp(state, 0).plus(self.rate.period()).max(Micros::new(state.get(EARLIEST))),
        }
    }
}

impl Algorithm for SlidingLog {
    const NAMES: &'static [&'static str] = &["sliding-log"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, window::LUA, include_str!("sliding_log.lua")];

    window_methods!();

    fn lua_args(&self) -> LuaArgs {
        [self.limit() as f64, self.rate.period().get() as f64, 0.0, 0.0, 0.0, 0.0]
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
        // Find our tokens, then close the gap with the newer ones.
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
        let places = self.capacity(state);
        state.set(NEXT, (state.get(NEXT) + places - removed) % places);
        state.set(LEN, filled - removed);
    }

    /// A log tells moments, which mean the same under any limit; it keeps those of its own period.
    fn shares_state(&self, other: &Self) -> bool {
        self.rate.period() == other.rate.period()
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sliding-log", self.rate)
    }
}
