//! Strict sliding window: the window is divided into `K` parts, and the oldest part counts in full until it leaves.
//!
//! ```text
//!   │▒▒▒▒│▓▓▓▓│▓▓▓▓│▓▓▓▓│▓▓        K + 1 counters; the sum never exceeds the limit
//!    ◀────── window ───────▶
//!    ▲ only part of it is in the window, all of it is counted
//! ```
//!
//! Because nothing is interpolated, no window of any phase exceeds the limit. It is an exact limit in `K + 1`
//! counters instead of a list of timestamps.
//!
//! Note that a saturated key gets only `K / (K + 1)` of its rate: 98.4 % for `K = 60`.

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

/// Never more than the limit in any window, in `parts + 1` counters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingStrict {
    rate: Rate,
    pub(super) parts: u64,
}

/// The words of state: the index of the newest part plus one (zero: unused key), then a ring of counters.
const NEWEST: usize = 0;
const RING: usize = 1;

/// The Lua port of this file.
pub(super) const LUA: &str = include_str!("sliding_strict.lua");

/// More parts cost more time to add up than they gain in precision.
const MAX_PARTS: u64 = 3_600;

impl SlidingStrict {
    /// At most `rate.amount()` in any window of `rate.period()`, counted in `parts` equal parts.
    pub fn new(rate: Rate, parts: u64) -> Result<Self, QuotaError> {
        rate.validate()?;
        QuotaError::require_nonzero("a number of parts", parts)?;
        if parts > MAX_PARTS || !rate.period().get().is_multiple_of(parts) {
            return Err(QuotaError::uneven_parts(rate.period(), parts, MAX_PARTS));
        }
        Ok(Self { rate, parts })
    }

    /// The number of parts of a window.
    pub fn parts(&self) -> u64 {
        self.parts
    }

    pub(super) fn part_len(&self) -> u64 {
        self.rate.period().get() / self.parts
    }

    pub(super) fn slot(&self, index: u64) -> usize {
        RING + (index % (self.parts + 1)) as usize
    }

    /// The newest part with a count; `None` for an unused key.
    fn newest<W: AlgorithmState + ?Sized>(state: &W) -> Option<u64> {
        state.get(NEWEST).checked_sub(1)
    }

    /// The time that counts as `now`: a reservation in a later part has precedence.
    pub(super) fn effective_now<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> Micros {
        match Self::newest(state) {
            Some(newest) => now.max(Micros::new(newest * self.part_len())),
            None => now,
        }
    }

    /// The sum of part `index` and the `parts` before it.
    pub(super) fn count_used<W: AlgorithmState + ?Sized>(&self, state: &W, index: u64) -> u64 {
        let Some(newest) = Self::newest(state) else { return 0 };
        (index.saturating_sub(self.parts)..=newest.min(index)).map(|part| state.get(self.slot(part))).sum()
    }
}

impl WindowAlgorithm for SlidingStrict {
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros {
        let at = self.effective_now(state, now);
        let index = at.get() / self.part_len();
        let mut used = self.count_used(state, index);
        let mut ahead = 0;
        // Drop the oldest parts, one after the other, until the cost fits.
        while used + cost > self.limit() {
            used -= match (index + ahead).checked_sub(self.parts) {
                Some(oldest) => state.get(self.slot(oldest)),
                None => 0,
            };
            ahead += 1;
        }
        if ahead == 0 { at } else { Micros::new((index + ahead) * self.part_len()) }
    }

    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        let index = at.get() / self.part_len();
        let newest = Self::newest(state);
        if newest.is_none_or(|newest| index > newest) {
            let first_new = newest.map_or(0, |newest| newest + 1).max(index.saturating_sub(self.parts));
            for part in first_new..=index {
                state.set(self.slot(part), 0);
            }
            state.set(NEWEST, index + 1);
        }
        let slot = self.slot(index);
        state.set(slot, state.get(slot) + cost);
    }

    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        if self.effective_now(state, now) > now {
            return 0;
        }
        self.limit().saturating_sub(self.count_used(state, now.get() / self.part_len()))
    }

    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros {
        let Some(newest) = Self::newest(state) else { return Micros::ZERO };
        let mut parts = (newest.saturating_sub(self.parts)..=newest).rev();
        match parts.find(|&part| state.get(self.slot(part)) > 0) {
            Some(part) => Micros::new((part + self.parts + 1) * self.part_len()),
            None => Micros::new(newest * self.part_len()),
        }
    }
}

impl Algorithm for SlidingStrict {
    const NAMES: &'static [&'static str] = &["sliding-strict"];
    const LUA_SOURCES: &'static [&'static str] = &[super::PRELUDE_LUA, super::CONVERT_LUA, window::LUA, LUA];

    window_methods!();

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        [self.limit() as f64, self.part_len() as f64, self.parts as f64, 0.0, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        let parts = reader.parse_count("a number of parts, as in `sliding-strict 60`")?;
        Self::new(rate, parts).map_err(|error| error.with_last_span(reader))
    }

    fn state_len(&self) -> usize {
        RING + self.parts as usize + 1
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 0, 0)
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, _now: Micros, receipt: Receipt, cost: u64) {
        let index = receipt.at.get() / self.part_len();
        if Self::newest(state).is_some_and(|newest| index <= newest && index + self.parts >= newest) {
            let slot = self.slot(index);
            state.set(slot, state.get(slot).saturating_sub(cost));
        }
    }

    /// The counts of the same parts are valid under any limit.
    fn shares_state(&self, other: &Self) -> bool {
        (self.parts, self.part_len()) == (other.parts, other.part_len())
    }
}

impl fmt::Display for SlidingStrict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sliding-strict {}", self.rate, self.parts)
    }
}
