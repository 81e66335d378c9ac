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
pub(super) struct SmoothRate {
    /// Microseconds between permits at the stable rate.
    pub(super) stable_interval: f64,
    /// The maximum number of stored permits.
    pub(super) max_permits: f64,
    /// Microseconds of idle time that store one permit.
    pub(super) cool_down_interval: f64,
    /// The cost of stored permits.
    pub(super) stored_permit_cost: StoredPermitCost,
}

/// The cost of stored permits: zero, or the area under a line that falls to the stable interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum StoredPermitCost {
    Free,
    Trapezoid { threshold: f64, slope: f64 },
}

/// The words of state: the stored permits as the bits of a double, and the time at which the next call proceeds
/// plus one (zero: unused key).
const STORED: usize = 0;
const FREE_AT: usize = 1;
pub(super) const STATE_LEN: usize = 2;

/// The Lua port of this file.
pub(super) const LUA: &str = include_str!("smooth_rate.lua");

/// A decoded state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SmoothState {
    pub(super) stored: f64,
    pub(super) free_at: Micros,
}

impl SmoothRate {
    /// The parameters for the Lua port.
    pub(super) fn lua_args(&self, limit: u64) -> LuaArgs {
        let Self { stable_interval: stable, max_permits, cool_down_interval: cool_down, stored_permit_cost } =
            *self;
        let (threshold, slope) = match stored_permit_cost {
            StoredPermitCost::Free => (-1.0, 0.0),
            StoredPermitCost::Trapezoid { threshold, slope } => (threshold, slope),
        };
        [limit as f64, stable, max_permits, cool_down, threshold, slope, 0.0]
    }

    /// Decodes the state. An unused key has all its permits stored.
    pub(super) fn load<W: AlgorithmState + ?Sized>(&self, state: &W) -> SmoothState {
        match state.get(FREE_AT).checked_sub(1) {
            Some(free_at) => {
                SmoothState { stored: f64::from_bits(state.get(STORED)), free_at: Micros::new(free_at) }
            }
            None => SmoothState { stored: self.max_permits, free_at: Micros::ZERO },
        }
    }

    pub(super) fn save<W: AlgorithmState + ?Sized>(state: &mut W, smooth_state: SmoothState) {
        state.set(STORED, smooth_state.stored.to_bits());
        state.set(FREE_AT, smooth_state.free_at.get() + 1);
    }

    /// Stores the permits of the idle time since `free_at`.
    pub(super) fn resync(&self, smooth_state: SmoothState, now: Micros) -> SmoothState {
        if now <= smooth_state.free_at {
            return smooth_state;
        }
        let new_permits = now.saturating_sub(smooth_state.free_at).get() as f64 / self.cool_down_interval;
        SmoothState { stored: (smooth_state.stored + new_permits).min(self.max_permits), free_at: now }
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

    pub(super) fn decide_converted<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        limit: u64,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let smooth_state = match writer.resync(writer.load(state), now) {
            // Equivalent to an unused key: a store has evicted it or is about to.
            SmoothState { stored, free_at } if stored >= writer.max_permits && free_at <= now => {
                SmoothState { stored: self.max_permits, free_at }
            }
            _ => self.load_converted(writer, state, now),
        };
        self.decide_at(smooth_state, limit, state, now, demand)
    }

    fn decide_at<W: AlgorithmState + ?Sized>(
        &self,
        mut smooth_state: SmoothState,
        limit: u64,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        // Guava tests the debt before it resynchronizes, and regardless of the cost.
        let wait = smooth_state.free_at.saturating_sub(now);
        let code = match wait {
            Micros::ZERO => DecisionCode::Allow,
            _ if wait <= demand.max_wait => DecisionCode::Delay,
            _ => DecisionCode::Deny,
        };

        let mut receipt = Receipt::default();
        // A larger cost is not exact in Redis.
        let cost = demand.cost.min(LARGEST_EXACT + 1);
        if code != DecisionCode::Deny && demand.effect == Effect::Charge && cost > 0 {
            smooth_state = self.resync(smooth_state, now);
            let used = (cost as f64).min(smooth_state.stored.max(0.0));
            let fresh_permits = cost as f64 - used;
            let debt = self
                .stored_permits_to_wait_time(smooth_state.stored, used)
                .saturating_add((fresh_permits * self.stable_interval) as u64);
            let debt = Micros::new(debt);
            let served = smooth_state.free_at;
            smooth_state =
                SmoothState { stored: smooth_state.stored - used, free_at: served.saturating_add(debt) };
            Self::save(state, smooth_state);
            let debt = smooth_state.free_at.saturating_sub(served);
            receipt = Receipt {
                cost,
                at: smooth_state.free_at,
                level_or_debt: debt.get(),
                permits_or_epoch: used.to_bits(),
            };
        }

        let count = CountReading {
            remaining: self.remaining(smooth_state, now),
            reset: self.reset_after(smooth_state, now),
            wait,
        };
        ChargeResult { decision: Decision::from_count(code, limit, count), receipt }
    }

    /// The cost in microseconds of `taken` of `stored` permits.
    fn stored_permits_to_wait_time(&self, stored: f64, taken: f64) -> u64 {
        let StoredPermitCost::Trapezoid { threshold, slope } = self.stored_permit_cost else { return 0 };
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

    fn remaining(&self, smooth_state: SmoothState, now: Micros) -> u64 {
        if smooth_state.free_at > now { 0 } else { self.resync(smooth_state, now).stored as u64 }
    }

    /// The time until all permits are stored again.
    fn reset_after(&self, smooth_state: SmoothState, now: Micros) -> Micros {
        let smooth_state = self.resync(smooth_state, now);
        let missing = (self.max_permits - smooth_state.stored) * self.cool_down_interval;
        let idle = if missing > 0.0 { (missing as u64).saturating_add(2).min(LARGEST_EXACT) } else { 0 };
        smooth_state.free_at.saturating_sub(now).saturating_add(Micros::new(idle))
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
        let smooth_state = self.load(state);
        let others_wait_behind = smooth_state.free_at > now && smooth_state.free_at != receipt.at;
        if others_wait_behind {
            return;
        }
        let smooth_state = self.resync(smooth_state, now);
        let share = cost as f64 / receipt.cost as f64;
        let debt = Micros::new((receipt.level_or_debt as f64 * share) as u64);
        let unserved = debt.min(receipt.at.saturating_sub(now));
        let elapsed = now.saturating_sub(receipt.at.saturating_sub(Micros::new(receipt.level_or_debt)));
        let restored = elapsed.get() as f64 / self.cool_down_interval;
        let stored = (f64::from_bits(receipt.permits_or_epoch) * share - restored).max(0.0);
        // Time has returned everything already; there is nothing to write.
        if unserved == Micros::ZERO && stored == 0.0 {
            return;
        }
        Self::save(
            state,
            SmoothState {
                stored: (smooth_state.stored + stored).min(self.max_permits),
                free_at: smooth_state.free_at.saturating_sub(unserved).max(now.min(smooth_state.free_at)),
            },
        );
    }

    pub(super) fn convert_state<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
    ) {
        if state.get(FREE_AT) == 0 {
            return;
        }
        let smooth_state = self.load_converted(writer, state, now);
        Self::save(state, smooth_state);
    }

    /// Converts a state of `writer` to this shaper. Debt is a time and does not change.
    ///
    /// If both fill up in the same time, the stored fraction does not change: that is Guava's `setRate`. Otherwise
    /// the same fraction could be far more permits, so the number of missing permits does not change, even if that
    /// makes the stored permits negative.
    fn load_converted<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &W,
        now: Micros,
    ) -> SmoothState {
        let smooth_state = writer.resync(writer.load(state), now);
        let (length, old_length) =
            (self.max_permits * self.cool_down_interval, writer.max_permits * writer.cool_down_interval);
        let fills_alike = (length - old_length).abs() <= old_length * 1e-9;
        let stored = match self.stored_permit_cost {
            StoredPermitCost::Free if !fills_alike && smooth_state.stored >= writer.max_permits => {
                self.max_permits
            }
            StoredPermitCost::Free if !fills_alike => {
                smooth_state.stored + (self.max_permits - writer.max_permits)
            }
            _ if smooth_state.stored < 0.0 => smooth_state.stored,
            _ => smooth_state.stored * self.max_permits / writer.max_permits,
        };
        SmoothState { stored: stored.min(self.max_permits), ..smooth_state }
    }
}

/// The methods of an algorithm with a `rate` and a `shaper` that delegate to the shaper.
macro_rules! smooth_rate_methods {
    () => {
        fn lua_args(&self, _now: Micros) -> LuaArgs {
            self.smooth_rate.lua_args(self.limit())
        }

        fn state_len(&self) -> usize {
            smooth_rate::STATE_LEN
        }

        fn rate(&self) -> Option<Rate> {
            Some(self.rate)
        }

        fn limit(&self) -> u64 {
            (self.smooth_rate.max_permits as u64).max(1)
        }

        fn decide<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.smooth_rate.decide(self.limit(), state, now, demand)
        }

        fn refund<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            receipt: Receipt,
            cost: u64,
        ) {
            self.smooth_rate.refund(state, now, receipt, cost);
        }

        /// Permits are comparable between rates.
        fn shares_state(&self, _other: &Self) -> bool {
            true
        }

        fn convert_state<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
            self.smooth_rate.convert_state(&writer.smooth_rate, state, now);
        }

        fn decide_converted<W: AlgorithmState + ?Sized>(
            &self,
            writer: &Self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.smooth_rate.decide_converted(&writer.smooth_rate, self.limit(), state, now, demand)
        }
    };
}
pub(super) use smooth_rate_methods;
