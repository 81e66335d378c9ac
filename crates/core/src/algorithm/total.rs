//! Total: a stock of tokens that never refills.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾▉▉▉▉▉▉  used up: denied permanently
//!         │   ▉▉▉▉▉▉▉▉▉▉
//!       0 ┼▉▉▉▉▉▉▉▉▉▉▉▉▉──▶  time changes nothing
//! ```
//!
//! Only a refund or a reset of the key makes room again. So a denial has no retry time
//! ([`Retry::Never`](crate::Retry::Never)), also for a cost that the stock had covered before.
//!
//! Note that a used key is stored without an expiry: it occupies memory until it is reset. Stores neither expire nor evict
//! it while the total is in force. Thirty days after another quota has replaced the total, an idle key may be removed.

use super::{Algorithm, ChargeResult, Demand, Effect, LuaArgs, Overdraft, Receipt};
use crate::{
    bound::Bound,
    decision::{CountReading, Decision, DecisionCode},
    quota::{QuotaError, QuotaReader, Rate, RateUnit},
    state::AlgorithmState,
    units::{LARGEST_EXACT, Micros},
};
use core::fmt;

/// A number of tokens for the lifetime of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Total {
    limit: u64,
    unit: RateUnit,
}

/// The only word of state: the tokens that are used.
const USED: usize = 0;

impl Total {
    /// At most `limit`, ever.
    pub fn new(limit: u64, unit: RateUnit) -> Result<Self, QuotaError> {
        QuotaError::require_nonzero("a total", limit)?;
        QuotaError::require_exact("a total", limit)?;
        Ok(Self { limit, unit })
    }

    /// The unit of the tokens.
    pub fn unit(&self) -> RateUnit {
        self.unit
    }

    fn to_decision(self, code: DecisionCode, used: u64) -> Decision {
        let reset = if used == 0 { Micros::ZERO } else { Micros::MAX };
        let count = CountReading { remaining: self.limit.saturating_sub(used), reset, wait: Micros::ZERO };
        Decision::from_count(code, self.limit, count)
    }
}

impl Algorithm for Total {
    const NAMES: &'static [&'static str] = &["total"];
    const LUA_SOURCES: &'static [&'static str] =
        &[super::PRELUDE_LUA, super::CONVERT_LUA, include_str!("total.lua")];

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        [self.limit as f64, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, _reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        Err(QuotaError::total_has_no_rate(rate))
    }

    fn state_len(&self) -> usize {
        1
    }

    fn rate(&self) -> Option<Rate> {
        None
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn bound(&self) -> Bound {
        Bound::total(self.limit, self.unit)
    }

    /// An overdraft above the stock could never be repaid, so it is denied; a forced charge is recorded.
    fn decide<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        _now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let used = state.get(USED);
        let after = used.saturating_add(demand.cost).min(LARGEST_EXACT);
        let is_granted = after <= self.limit || demand.cost == 0 || demand.overdraft == Overdraft::Force;
        let code = if is_granted { DecisionCode::Allow } else { DecisionCode::Never };
        if !is_granted || demand.effect == Effect::Peek || demand.cost == 0 {
            return ChargeResult { decision: self.to_decision(code, used), receipt: Receipt::default() };
        }
        state.set(USED, after);
        let receipt = Receipt { cost: after - used, ..Receipt::default() };
        ChargeResult { decision: self.to_decision(code, after), receipt }
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, _now: Micros, _receipt: Receipt, cost: u64) {
        state.set(USED, state.get(USED).saturating_sub(cost));
    }

    /// Used tokens stay used under any limit.
    fn shares_state(&self, _other: &Self) -> bool {
        true
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} total", self.unit.display(self.limit))
    }
}
