//! Calendar window: a fixed window from midnight to midnight, Monday to Monday or month to month in a time zone.
//!
//! ```text
//!   limit ┤────────▉▉▉│▉▉▉──────────│▉        ▉ admitted
//!         │        ▉▉▉│▉▉▉          │▉
//!       0 ┼───────────┴─────────────┴──▶
//!           28 March    29 March: 23 hours      Europe/Berlin puts its clocks forward
//! ```
//!
//! The windows are as long as the days, weeks and months of the zone: a day has 23 or 25 hours when clocks change, and
//! a month 28 to 31 days. A denial is retried at the start of the next window.
//!
//! Note that as with any fixed window twice the limit is admitted around a boundary. A caller waits at most for the next
//! window, and a cost above the limit is never granted.

use super::{Algorithm, ChargeResult, Demand, Effect, LuaArgs, Overdraft, Receipt};
use crate::{
    Fnv,
    bound::Bound,
    decision::{CountReading, Decision, DecisionCode},
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    time_zone::{CalendarPeriod, CalendarSpan, TimeZone},
    units::{LARGEST_EXACT, Micros},
};
use core::fmt::{self, Write as _};

/// Counts calls in the days, weeks or months of a time zone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalendarWindow {
    /// The amount, and the usual length of a window.
    rate: Rate,
    period: CalendarPeriod,
    zone: TimeZone,
}

/// The words of state: the start of the newest window plus one (zero: unused key), its count, and its end. The newest
/// window is in the future while callers wait for it.
const START: usize = 0;
const COUNT: usize = 1;
const END: usize = 2;

/// The number of windows that the Lua port receives: the previous one, the current one and the next two.
const LUA_WINDOWS: usize = 4;

impl CalendarWindow {
    /// At most `rate.amount()` in each `period` of the calendar in `zone`. The period of the rate is not used.
    pub fn new(rate: Rate, period: CalendarPeriod, zone: TimeZone) -> Result<Self, QuotaError> {
        let rate = Rate::new(rate.amount(), period.nominal()).with_unit(rate.unit());
        rate.validate()?;
        Ok(Self { rate, period, zone })
    }

    /// The period of the calendar.
    pub fn period(&self) -> CalendarPeriod {
        self.period
    }

    /// The time zone.
    pub fn zone(&self) -> TimeZone {
        self.zone
    }

    fn window_at(&self, at: Micros) -> CalendarSpan {
        self.zone.span_at(self.period, at)
    }

    /// The window in force at `now`, and its count. A window whose count was refunded to zero is closed.
    fn current_window<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (CalendarSpan, u64) {
        let (count, end) = (state.get(COUNT), Micros::new(state.get(END)));
        match state.get(START).checked_sub(1).map(Micros::new) {
            Some(start) if now < start || (count > 0 && now < end) => (CalendarSpan { start, end }, count),
            _ => (self.window_at(now), 0),
        }
    }

    fn to_decision<W: AlgorithmState + ?Sized>(
        self,
        state: &W,
        now: Micros,
        code: DecisionCode,
        wait: Micros,
    ) -> Decision {
        let (window, count) = self.current_window(state, now);
        let remaining = if window.start > now { 0 } else { self.limit().saturating_sub(count) };
        let reset_at = match state.get(START).checked_sub(1) {
            Some(_) if state.get(COUNT) > 0 => state.get(END),
            Some(start) => start,
            None => 0,
        };
        let reset = Micros::new(reset_at).saturating_sub(now);
        Decision::from_count(code, self.limit(), CountReading { remaining, reset, wait })
    }
}

impl Algorithm for CalendarWindow {
    const NAMES: &'static [&'static str] = &["calendar-window", "fixed-window in"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, include_str!("calendar_window.lua")];

    fn lua_args(&self, now: Micros) -> LuaArgs {
        let mut hash = Fnv::default();
        // Hashing does not fail.
        let _ = write!(hash, "{} {}", self.period.name(), self.zone);
        let current = self.window_at(now);
        let previous = self.window_at(current.start.saturating_sub(Micros::new(1)));
        let mut args = [0.0; 7];
        args[0] = self.limit() as f64;
        args[1] = (hash.finish() & LARGEST_EXACT) as f64;
        let mut boundary = previous.start;
        for (index, arg) in args[2..=2 + LUA_WINDOWS].iter_mut().enumerate() {
            *arg = boundary.get() as f64;
            boundary = if index == 0 { current.start } else { self.window_at(boundary).end };
        }
        args
    }

    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        let period = reader.calendar_period(rate)?;
        // `fixed-window in` includes it.
        let _ = reader.accept("in");
        let zone = reader.parse_time_zone()?;
        Self::new(rate, period, zone)
    }

    fn state_len(&self) -> usize {
        3
    }

    fn rate(&self) -> Option<Rate> {
        Some(self.rate)
    }

    fn limit(&self) -> u64 {
        self.rate.amount()
    }

    fn bound(&self) -> Bound {
        Bound::windows(self.rate, 1, 0).with_shortest_window(self.period.shortest())
    }

    fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult {
        let (limit, is_forced) = (self.limit(), demand.overdraft == Overdraft::Force);
        if demand.cost > limit && !is_forced {
            let decision = self.to_decision(state, now, DecisionCode::Never, Micros::ZERO);
            return ChargeResult { decision, receipt: Receipt::default() };
        }

        // Decide.
        let (window, count) = self.current_window(state, now);
        let fits = is_forced || count.saturating_add(demand.cost) <= limit;
        let at = if fits { window.start.max(now) } else { window.end };
        let wait = at.saturating_sub(now);
        let code = match wait {
            Micros::ZERO => DecisionCode::Allow,
            _ if is_forced => DecisionCode::Delay,
            _ if wait <= demand.max_wait && at < self.window_at(self.window_at(now).end).end => {
                DecisionCode::Delay
            }
            _ => DecisionCode::Deny,
        };

        // Update.
        let mut receipt = Receipt::default();
        if code != DecisionCode::Deny && demand.effect == Effect::Charge && demand.cost > 0 {
            let (window, count) = if fits { (window, count) } else { (self.window_at(at), 0) };
            let after = count.saturating_add(demand.cost).min(LARGEST_EXACT);
            state.set(START, window.start.get() + 1);
            state.set(COUNT, after);
            state.set(END, window.end.get());
            receipt = Receipt { cost: after - count, at, ..Receipt::default() };
        }
        ChargeResult { decision: self.to_decision(state, now, code, wait), receipt }
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64) {
        // Only the newest window is refundable; older ones have ended, or other calls wait behind them.
        let (window, count) = self.current_window(state, now);
        if state.get(START) == window.start.get() + 1 && window.start <= receipt.at {
            state.set(COUNT, count.saturating_sub(cost));
        }
    }

    /// Both count in the same windows.
    fn shares_state(&self, other: &Self) -> bool {
        self.period == other.period && self.zone == other.zone
    }
}

impl fmt::Display for CalendarWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let amount = self.rate.unit().display(self.rate.amount());
        write!(f, "{amount}/{} fixed-window in {}", self.period.name(), self.zone)
    }
}
