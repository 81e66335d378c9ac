//! Sliding window: two fixed windows; the weight of the older one falls as the newer one fills.
//!
//! ```text
//!   ▒▒▒▒▒▒▒▒▒▒│▓▓▓▓▓
//!   previous  │current      estimate = previous × (1 − f) + current
//!   ◀────── window ────▶    f = elapsed fraction of the current window
//! ```
//!
//! It assumes that the calls of the previous window were evenly distributed. In integers: a cost `n` fits if
//! `previous · (W − x) ≤ (limit − current − n) · W`, `x` ticks into the window of `W` ticks. A tick is a
//! microsecond, or more if `limit · W` would exceed the exact range (10 µs for a million a day); time is rounded
//! down to it.
//!
//! Note that the assumption can be wrong: a burst at the end of one window, followed by a constant stream, puts up
//! to `2 · limit − 1` into one window. Use `sliding-strict` for a hard limit.

use super::{
    Algorithm, ChargeResult, Demand, LuaArgs, Receipt,
    window::{self, WindowAlgorithm, window_methods},
};
use crate::{
    bound::Bound,
    math::mul_div_ceil,
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::{LARGEST_EXACT, Micros},
};
use core::fmt;

/// The count of the current window plus the weighted count of the previous one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SlidingWindow {
    rate: Rate,
    tick: u64,
}

/// The words of state: the time of the newest admission plus one (zero: unused key), the count of the window
/// before it, and the count of its own window.
const NEWEST: usize = 0;
const PREVIOUS: usize = 1;
const CURRENT: usize = 2;

/// How much longer than necessary a tick may be, to divide the window.
const MAX_TICK_FACTOR: u64 = 64;

/// Both counts at `at`.
struct WindowView {
    at: Micros,
    start: Micros,
    previous: u64,
    current: u64,
}

impl SlidingWindow {
    /// About `rate.amount()` in any window of `rate.period()`.
    pub fn new(rate: Rate) -> Result<Self, QuotaError> {
        rate.validate()?;
        let (amount, period) = (rate.amount(), rate.period().get());
        let steps = u128::from(amount) * u128::from(period);
        let smallest = u64::try_from(steps.div_ceil(LARGEST_EXACT.into())).unwrap_or(u64::MAX);
        let tick =
            (smallest..=smallest.saturating_mul(MAX_TICK_FACTOR)).find(|&tick| period.is_multiple_of(tick));
        tick.map(|tick| Self { rate, tick }).ok_or_else(|| QuotaError::too_fine(rate))
    }

    fn length(&self) -> u64 {
        self.rate.period().get()
    }

    fn view<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> WindowView {
        let newest = Micros::new(state.get(NEWEST).saturating_sub(1));
        let at = now.max(newest);
        let (then, index) = (newest.get() / self.length(), at.get() / self.length());
        let (previous, current) = match index - then {
            0 => (state.get(PREVIOUS), state.get(CURRENT)),
            1 => (state.get(CURRENT), 0),
            _ => (0, 0),
        };
        WindowView { at, start: Micros::new(index * self.length()), previous, current }
    }

    /// The length of the window in ticks.
    fn ticks(&self) -> u64 {
        self.length() / self.tick
    }

    /// The offset in the window at which the weighted `previous` fits into `room`.
    fn fade_time(&self, previous: u64, room: u64) -> u64 {
        match previous {
            0 => 0,
            _ => self.ticks().saturating_sub(room * self.ticks() / previous) * self.tick,
        }
    }
}

impl WindowAlgorithm for SlidingWindow {
    fn earliest_admission<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros, cost: u64) -> Micros {
        let view = self.view(state, now);
        match self.limit().checked_sub(view.current.saturating_add(cost)) {
            Some(room) => {
                let into = self.fade_time(view.previous, room);
                view.at.max(view.start.saturating_add(Micros::new(into)))
            }
            None => {
                let into = self.fade_time(view.current, self.limit() - cost);
                view.start.saturating_add(Micros::new(self.length() + into))
            }
        }
    }

    fn record<W: AlgorithmState + ?Sized>(&self, state: &mut W, at: Micros, cost: u64) {
        let view = self.view(state, at);
        state.set(NEWEST, view.at.get() + 1);
        state.set(PREVIOUS, view.previous);
        state.set(CURRENT, view.current + cost);
    }

    fn remaining<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        let view = self.view(state, now);
        if view.at > now {
            return 0;
        }
        let left = self.ticks() - now.saturating_sub(view.start).get() / self.tick;
        // Exact even if a quota with a far larger limit counted.
        let faded = mul_div_ceil(view.previous, left, self.ticks());
        self.limit().saturating_sub(view.current.saturating_add(faded))
    }

    fn reset_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros {
        let view = self.view(state, Micros::ZERO);
        let windows = match (view.previous, view.current) {
            (0, 0) => return view.at,
            (_, 0) => 1,
            _ => 2,
        };
        view.start.saturating_add(Micros::new(windows * self.length()))
    }
}

impl Algorithm for SlidingWindow {
    const NAMES: &'static [&'static str] = &["sliding-window"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, window::LUA, include_str!("sliding_window.lua")];

    window_methods!();

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        [self.limit() as f64, self.length() as f64, self.tick as f64, 0.0, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, _reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        Self::new(rate)
    }

    fn state_len(&self) -> usize {
        3
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 1, 1)
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, _now: Micros, receipt: Receipt, cost: u64) {
        let Some(newest) = state.get(NEWEST).checked_sub(1) else { return };
        match (newest / self.length()).checked_sub(receipt.at.get() / self.length()) {
            Some(0) => state.set(CURRENT, state.get(CURRENT).saturating_sub(cost)),
            Some(1) => state.set(PREVIOUS, state.get(PREVIOUS).saturating_sub(cost)),
            _ => {}
        }
    }

    /// The counts of windows of the same length are valid under any limit.
    fn shares_state(&self, other: &Self) -> bool {
        self.length() == other.length()
    }
}

impl fmt::Display for SlidingWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sliding-window", self.rate)
    }
}
