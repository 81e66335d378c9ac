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
    Algorithm, Demand, Inherit, Numbers, Receipt, Step,
    fixed_window::carry,
    window::{self, Window},
};
use crate::{
    bound::Bound,
    quota::{QuotaError, Rate, Reader},
    units::Micros,
    words::Words,
};
use core::fmt;

/// The exact moments of the last `limit` tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingLog {
    rate: Rate,
}

/// Words of state: the next place in the ring, how many places are filled, a moment before which nothing may be
/// placed (a refund must not uncover what a later place overwrote), then the ring of moments.
const NEXT: usize = 0;
const FILLED: usize = 1;
const FLOOR: usize = 2;
const RING: usize = 3;

/// A key's log would be 1 MiB; `sliding-strict` keeps the same promise in far less.
const LONGEST: u64 = 131_072;

impl SlidingLog {
    /// At most `rate.amount()` in any window of `rate.period()`, exactly.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        rate.validate()?;
        if rate.amount() > LONGEST {
            return Err(QuotaError::too_long(rate.amount(), LONGEST));
        }
        Ok(Self { rate })
    }

    fn capacity(&self) -> u64 {
        self.rate.amount()
    }

    /// The moment of the token with `newer` others after it.
    fn moment<W: Words + ?Sized>(&self, state: &W, newer: u64) -> Micros {
        Micros::new(state.get(self.slot(state, newer)))
    }

    fn slot<W: Words + ?Sized>(&self, state: &W, newer: u64) -> usize {
        let capacity = self.capacity();
        RING + ((state.get(NEXT) + capacity - 1 - newer) % capacity) as usize
    }

    /// How many tokens still count at `at`: moments only grow, so the newest of them are a prefix.
    fn used<W: Words + ?Sized>(&self, state: &W, at: Micros) -> u64 {
        let (mut counted, mut gone) = (0, state.get(FILLED));
        while counted < gone {
            let middle = counted + (gone - counted) / 2;
            if self.moment(state, middle).plus(self.rate.period()) > at {
                counted = middle + 1;
            } else {
                gone = middle;
            }
        }
        counted
    }
}

impl Window for SlidingLog {
    fn earliest<W: Words + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros {
        let at = now.max(Micros::new(state.get(FLOOR)));
        let may_stay = self.capacity() - cost;
        if cost == 0 || state.get(FILLED) <= may_stay {
            return at;
        }
        at.max(self.moment(state, may_stay).plus(self.rate.period()))
    }

    fn record<W: Words + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        let capacity = self.capacity();
        let next = state.get(NEXT);
        for offset in 0..cost {
            state.set(RING + ((next + offset) % capacity) as usize, at.get());
        }
        state.set(NEXT, (next + cost) % capacity);
        state.set(FILLED, (state.get(FILLED) + cost).min(capacity));
        state.set(FLOOR, at.get());
    }

    fn remaining<W: Words + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        if state.get(FLOOR) > now.get() {
            return 0;
        }
        self.capacity() - self.used(state, now)
    }

    fn forgotten<W: Words + ?Sized>(&self, state: &W) -> Micros {
        match state.get(FILLED) {
            0 => Micros::new(state.get(FLOOR)),
            _ => self.moment(state, 0).plus(self.rate.period()).max(Micros::new(state.get(FLOOR))),
        }
    }
}

impl Algorithm for SlidingLog {
    const NAMES: &'static [&'static str] = &["sliding-log"];
    const TWIN: &'static [&'static str] =
        &[super::LUA, super::CARRY_LUA, window::LUA, include_str!("sliding_log.lua")];

    fn numbers(&self) -> Numbers {
        [self.limit() as f64, self.rate.period().get() as f64, 0.0, 0.0, 0.0, 0.0]
    }

    fn read(rate: Rate, _reader: &mut Reader<'_>) -> Result<Self, QuotaError> {
        Self::new(rate)
    }

    fn width(&self) -> usize {
        RING + self.capacity() as usize
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn limit(&self) -> u64 {
        self.capacity()
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 0, 0)
    }

    fn decide<W: Words + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> Step {
        window::decide(self, state, now, demand)
    }

    fn refund<W: Words + ?Sized>(&self, state: &mut W, _now: Micros, receipt: Receipt, cost: u64) {
        // Find our tokens, then close the gap with the newer ones.
        let filled = state.get(FILLED);
        let Some(first) = (0..filled).find(|&newer| self.moment(state, newer) <= receipt.at) else { return };
        let ours = (first..filled).take_while(|&newer| self.moment(state, newer) == receipt.at);
        let removed = cost.min(ours.count() as u64);
        for newer in (removed..first + removed).rev() {
            let moved = self.moment(state, newer - removed);
            state.set(self.slot(state, newer), moved.get());
        }
        let capacity = self.capacity();
        state.set(NEXT, (state.get(NEXT) + capacity - removed) % capacity);
        state.set(FILLED, filled - removed);
    }

    fn inherit<W: Words + ?Sized>(&self, old: &Self, state: &mut W, now: Micros, how: Inherit) {
        if how == Inherit::Additive && self.capacity() == old.capacity() {
            return;
        }
        let at = now.max(Micros::new(state.get(FLOOR)));
        let used = carry(old.used(state, at), old.capacity(), self.capacity(), how);
        for word in 0..RING {
            state.set(word, 0);
        }
        self.record(state, at, used.min(self.capacity()));
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sliding-log", self.rate)
    }
}
