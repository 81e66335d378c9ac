//! Shared by Guava's two shapers: the stored permits, and the time at which the next call proceeds.
//!
//! The arithmetic is bit for bit that of Guava: doubles for permits, microseconds for time, each term of a wait
//! truncated separately, in the same order. A call waits for the debt of earlier calls, never for its own.

use super::{ChargeResult, Demand, Effect, LuaArgs, Receipt};
use crate::{
    decision::{CountReading, Decision, DecisionCode},
    state::AlgorithmState,
    units::{LARGEST_EXACT, Micros},
};

/// The parameters of a shaper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Shaper {
    /// Microseconds between permits at the stable rate.
    pub(super) stable_interval: f64,
    /// The maximum number of stored permits.
    pub(super) max_permits: f64,
    /// Microseconds of idle time that store one permit.
    pub(super) cool_down_interval: f64,
    /// The cost of stored permits.
    pub(super) warm_up: WarmUpCost,
}

/// The cost of stored permits: zero, or the area under a line that falls to the stable interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum WarmUpCost {
    Free,
    Trapezoid { threshold: f64, slope: f64 },
}

/// The words of state: the stored permits as the bits of a double, and the time at which the next call proceeds
/// plus one (zero: unused key).
const STORED: usize = 0;
const FREE_AT: usize = 1;
pub(super) const STATE_LEN: usize = 2;

/// The Lua port of this file.
pub(super) const LUA: &str = include_str!("shaper.lua");

/// A decoded state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ShaperState {
    pub(super) stored: f64,
    pub(super) free_at: Micros,
}

impl Shaper {
    /// The parameters for the Lua port.
    pub(super) fn lua_args(&self, limit: u64) -> LuaArgs {
        let Self { stable_interval: stable, max_permits: most, cool_down_interval: cool_down, warm_up } =
            *self;
        let (threshold, slope) = match warm_up {
            WarmUpCost::Free => (-1.0, 0.0),
            WarmUpCost::Trapezoid { threshold, slope } => (threshold, slope),
        };
        [limit as f64, stable, most, cool_down, threshold, slope]
    }

    /// Decodes the state. An unused key has all its permits stored.
    pub(super) fn load<W: AlgorithmState + ?Sized>(&self, state: &W) -> ShaperState {
        match state.get(FREE_AT).checked_sub(1) {
            Some(free_at) => {
                ShaperState { stored: f64::from_bits(state.get(STORED)), free_at: Micros::new(free_at) }
            }
            None => ShaperState { stored: self.max_permits, free_at: Micros::ZERO },
        }
    }

    pub(super) fn save<W: AlgorithmState + ?Sized>(state: &mut W, shaper_state: ShaperState) {
        state.set(STORED, shaper_state.stored.to_bits());
        state.set(FREE_AT, shaper_state.free_at.get() + 1);
    }

    /// Stores the permits of the idle time since `free_at`.
    pub(super) fn resync(&self, pace: ShaperState, now: Micros) -> ShaperState {
        if now <= pace.free_at {
            return pace;
        }
        let fresh = now.since(pace.free_at).get() as f64 / self.cool_down_interval;
        ShaperState { stored: (pace.stored + fresh).min(self.max_permits), free_at: now }
    }

    pub(super) fn decide<W: AlgorithmState + ?Sized>(
        &self,
        limit: u64,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        self.decide_at(self.load(state), limit, state, now, demand)
    }

    pub(super) fn decide_carried<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        limit: u64,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let pace = match writer.resync(writer.load(state), now) {
            // Equivalent to an unused key: a store has evicted it or is about to.
            ShaperState { stored, free_at } if stored >= writer.max_permits && free_at <= now => {
                ShaperState { stored: self.max_permits, free_at }
            }
            _ => self.convert_state(writer, state, now),
        };
        self.decide_at(pace, limit, state, now, demand)
    }

    fn decide_at<W: AlgorithmState + ?Sized>(
        &self,
        mut pace: ShaperState,
        limit: u64,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        // Guava tests the debt before it resynchronizes, and regardless of the cost.
        let wait = pace.free_at.since(now);
        let code = match wait {
            Micros::ZERO => DecisionCode::Allow,
            _ if wait <= demand.max_wait => DecisionCode::Delay,
            _ => DecisionCode::Deny,
        };

        let mut receipt = Receipt::default();
        // A larger cost is not exact in Redis.
        let cost = demand.cost.min(LARGEST_EXACT + 1);
        if code != DecisionCode::Deny && demand.effect == Effect::Charge && cost > 0 {
            pace = self.resync(pace, now);
            let used = (cost as f64).min(pace.stored.max(0.0));
            let fresh = cost as f64 - used;
            let debt =
                self.stored_cost(pace.stored, used).saturating_add((fresh * self.stable_interval) as u64);
            let debt = Micros::new(debt);
            let served = pace.free_at;
            pace = ShaperState { stored: pace.stored - used, free_at: served.plus(debt) };
            Self::save(state, pace);
            let debt = pace.free_at.since(served);
            receipt = Receipt { cost, at: pace.free_at, mark: debt.get(), stored: used.to_bits() };
        }

        let count =
            CountReading { remaining: self.remaining(pace, now), reset: self.reset_after(pace, now), wait };
        ChargeResult { decision: Decision::from_count(code, limit, count), receipt }
    }

    /// The cost in microseconds of `taken` of `stored` permits.
    fn stored_cost(&self, stored: f64, taken: f64) -> u64 {
        let WarmUpCost::Trapezoid { threshold, slope } = self.warm_up else { return 0 };
        let interval = |permits: f64| self.stable_interval + permits * slope;
        let above = stored - threshold;
        let mut taken = taken;
        let mut micros = 0;
        if above > 0.0 {
            let from_above = above.min(taken);
            let length = interval(above) + interval(above - from_above);
            micros = (from_above * length / 2.0) as u64;
            taken -= from_above;
        }
        micros.saturating_add((self.stable_interval * taken) as u64)
    }

    fn remaining(&self, pace: ShaperState, now: Micros) -> u64 {
        if pace.free_at > now { 0 } else { self.resync(pace, now).stored as u64 }
    }

    /// The time until all permits are stored again.
    fn reset_after(&self, pace: ShaperState, now: Micros) -> Micros {
        let pace = self.resync(pace, now);
        let missing = (self.max_permits - pace.stored) * self.cool_down_interval;
        let idle = if missing > 0.0 { (missing as u64).saturating_add(2).min(LARGEST_EXACT) } else { 0 };
        pace.free_at.since(now).plus(Micros::new(idle))
    }

    /// Refunds the debt that is not yet served and the stored permits that idle time has not restored.
    pub(super) fn refund<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
        cost: u64,
    ) {
        if receipt.cost == 0 || state.get(FREE_AT) == 0 {
            return;
        }
        // Waiting callers keep their admission times, so a refund in front of them has no effect.
        let pace = self.load(state);
        let others_wait_behind = pace.free_at > now && pace.free_at != receipt.at;
        if others_wait_behind {
            return;
        }
        let pace = self.resync(pace, now);
        let share = cost as f64 / receipt.cost as f64;
        let debt = Micros::new((receipt.mark as f64 * share) as u64);
        let unserved = debt.min(receipt.at.since(now));
        let elapsed = now.since(receipt.at.since(Micros::new(receipt.mark)));
        let restored = elapsed.get() as f64 / self.cool_down_interval;
        let stored = (f64::from_bits(receipt.stored) * share - restored).max(0.0);
        // Time has returned everything already; there is nothing to write.
        if unserved == Micros::ZERO && stored == 0.0 {
            return;
        }
        Self::save(
            state,
            ShaperState {
                stored: (pace.stored + stored).min(self.max_permits),
                free_at: pace.free_at.since(unserved).max(now.min(pace.free_at)),
            },
        );
    }

    pub(super) fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
        if state.get(FREE_AT) == 0 {
            return;
        }
        let pace = self.convert_state(writer, state, now);
        Self::save(state, pace);
    }

    /// Converts a state of `writer` to this shaper. Debt is a time and does not change.
    ///
    /// If both fill up in the same time, the stored fraction does not change: that is Guava's `setRate`. Otherwise
    /// the same fraction could be far more permits, so the number of missing permits does not change, even if that
    /// makes the stored permits negative.
    fn convert_state<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &W,
        now: Micros,
    ) -> ShaperState {
        let pace = writer.resync(writer.load(state), now);
        let (length, old_length) =
            (self.max_permits * self.cool_down_interval, writer.max_permits * writer.cool_down_interval);
        let fills_alike = (length - old_length).abs() <= old_length * 1e-9;
        let stored = match self.warm_up {
            WarmUpCost::Free if !fills_alike && pace.stored >= writer.max_permits => self.max_permits,
            WarmUpCost::Free if !fills_alike => pace.stored + (self.max_permits - writer.max_permits),
            _ if pace.stored < 0.0 => pace.stored,
            _ => pace.stored * self.max_permits / writer.max_permits,
        };
        ShaperState { stored: stored.min(self.max_permits), ..pace }
    }
}

/// The methods of an algorithm with a `rate` and a `shaper` that delegate to the shaper.
macro_rules! shaper_methods {
    () => {
        fn lua_args(&self) -> LuaArgs {
            self.shaper.lua_args(self.limit())
        }

        fn state_len(&self) -> usize {
            shaper::STATE_LEN
        }

        fn rate(&self) -> Option<Rate> {
            Some(self.rate)
        }

        fn limit(&self) -> u64 {
            (self.shaper.max_permits as u64).max(1)
        }

        fn decide<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.shaper.decide(self.limit(), state, now, demand)
        }

        fn refund<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            receipt: Receipt,
            cost: u64,
        ) {
            self.shaper.refund(state, now, receipt, cost);
        }

        /// Permits are comparable between rates.
        fn shares_state(&self, _other: &Self) -> bool {
            true
        }

        fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
            self.shaper.carry_over(&writer.shaper, state, now);
        }

        fn decide_carried<W: AlgorithmState + ?Sized>(
            &self,
            writer: &Self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.shaper.decide_carried(&writer.shaper, self.limit(), state, now, demand)
        }
    };
}
pub(super) use shaper_methods;
