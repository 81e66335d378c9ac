//! Fixed window: counts calls in a window and restarts at zero in the next.
//!
//! ```text
//!   limit ┤────────▉▉▉│▉▉▉──────│         ▉ admitted
//!         │        ▉▉▉│▉▉▉      │
//!       0 ┼───────────┴─────────┴──▶
//!         window 1    window 2           both bursts fit: 2 × limit in a short time
//! ```
//!
//! Windows follow the calendar (UTC; weeks start on Monday, or on Thursday if counted from the epoch), or they
//! start with the first hit after the previous window ended, which gives every key its own phase. Windows that follow the
//! calendar of a time zone are another algorithm, because their lengths differ.
//!
//! Note that around a boundary twice the limit is admitted. It is the cheapest algorithm and the usual meaning of
//! "100 per day", but it does not limit a single second.

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

/// Where windows start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowStart {
    /// At whole multiples of the period, in UTC; weeks on Monday.
    Calendar,
    /// At whole multiples of the period since 1970-01-01, a Thursday: for services that have no weeks.
    Epoch,
    /// At the first hit after the previous window ended.
    FirstHit,
}

/// Counts calls in windows that do not overlap.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FixedWindow {
    rate: Rate,
    start: WindowStart,
}

/// The words of state: the start of the newest window plus one (zero: unused key), and its count. The newest
/// window is in the future while callers wait for it; all windows before it are full.
const START: usize = 0;
const COUNT: usize = 1;

/// 1970-01-05 was the first Monday.
const FIRST_MONDAY: u64 = 4 * 86_400_000_000;
const WEEK: u64 = 7 * 86_400_000_000;

impl FixedWindow {
    /// At most `rate.amount()` in each window of `rate.period()`.
    pub fn new(rate: Rate, start: WindowStart) -> Result<Self, QuotaError> {
        rate.validate()?;
        Ok(Self { rate, start })
    }

    /// The start of its windows.
    pub fn start(&self) -> WindowStart {
        self.start
    }

    fn length(&self) -> Micros {
        self.rate.period()
    }

    /// The offset of the first calendar window from the epoch.
    fn phase(&self) -> u64 {
        let length = self.length().get();
        let has_weeks = self.start == WindowStart::Calendar && length.is_multiple_of(WEEK);
        if has_weeks { FIRST_MONDAY % length } else { 0 }
    }

    /// The offset of `at` in the window that a hit at `at` opens.
    fn offset_in_window(&self, at: Micros) -> Micros {
        let length = self.length().get();
        match self.start {
            WindowStart::FirstHit => Micros::ZERO,
            WindowStart::Calendar | WindowStart::Epoch => {
                Micros::new((at.get() + (length - self.phase())) % length)
            }
        }
    }

    /// The start of the window that a hit at `at` opens, at least zero.
    fn window_start(&self, at: Micros) -> Micros {
        at.saturating_sub(self.offset_in_window(at))
    }

    /// The end of a window: that of the calendar, even if the window started later.
    fn window_end(&self, start: Micros) -> Micros {
        start.saturating_add(self.length().saturating_sub(self.offset_in_window(start)))
    }

    /// The window in force at `now`, and its count. A window whose count was refunded to zero is closed.
    fn current_window<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (Micros, u64) {
        let count = state.get(COUNT);
        match state.get(START).checked_sub(1).map(Micros::new) {
            Some(start) if now < start || (count > 0 && now < self.window_end(start)) => (start, count),
            _ => (self.window_start(now), 0),
        }
    }
}

impl WindowAlgorithm for FixedWindow {
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros {
        let (start, count) = self.current_window(state, now);
        if count + cost <= self.limit() { start.max(now) } else { self.window_end(start) }
    }

    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        let (start, count) = self.current_window(state, at);
        state.set(START, start.get() + 1);
        state.set(COUNT, count + cost);
    }

    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        let (start, count) = self.current_window(state, now);
        if start > now { 0 } else { self.limit().saturating_sub(count) }
    }

    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros {
        match state.get(START).checked_sub(1) {
            Some(start) if state.get(COUNT) > 0 => self.window_end(Micros::new(start)),
            Some(start) => Micros::new(start),
            None => Micros::ZERO,
        }
    }
}

impl Algorithm for FixedWindow {
    const NAMES: &'static [&'static str] = &["fixed-window"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, window::LUA, include_str!("fixed_window.lua")];

    window_methods!();

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        let phase = match self.start {
            WindowStart::FirstHit => -1.0,
            WindowStart::Calendar | WindowStart::Epoch => self.phase() as f64,
        };
        [self.limit() as f64, self.length().get() as f64, phase, 0.0, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        let start = match (reader.accept("from-first-hit"), reader.accept("from-epoch")) {
            (Some(()), _) => WindowStart::FirstHit,
            (None, Some(())) => WindowStart::Epoch,
            (None, None) => WindowStart::Calendar,
        };
        Self::new(rate, start)
    }

    fn state_len(&self) -> usize {
        2
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 1, 0)
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64) {
        // Only the newest window is refundable; older ones have ended, or other calls wait behind them.
        let (start, count) = self.current_window(state, now);
        if state.get(START) == start.get() + 1 && start <= receipt.at {
            state.set(COUNT, count.saturating_sub(cost));
        }
    }

    /// Both count in the same windows. Calendar and epoch differ for weeks only.
    fn shares_state(&self, other: &Self) -> bool {
        let windows = |it: &Self| it.lua_args(Micros::ZERO)[1..3].to_vec();
        windows(self) == windows(other)
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} fixed-window", self.rate)?;
        match self.start {
            WindowStart::Calendar => Ok(()),
            WindowStart::Epoch => f.write_str(" from-epoch"),
            WindowStart::FirstHit => f.write_str(" from-first-hit"),
        }
    }
}
