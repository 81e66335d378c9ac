//! A level that rises with cost and drains with time, in units that make every number whole.
//!
//! A quota of `amount` per `period` is reduced by its greatest common divisor: a token costs `price` units, one
//! microsecond drains `drain` units. Nothing is ever rounded, so no pattern of calls makes the rate drift.

use super::{ChargeResult, Demand, Effect, LuaArgs, Overdraft, Receipt};
use crate::{
    decision::{CountReading, Decision, DecisionCode, LevelReading as Reading},
    math::{gcd, mul_div_ceil, mul_div_floor},
    quota::{QuotaError, Rate},
    state::AlgorithmState,
    units::{LARGEST_EXACT, Micros},
};

/// The whole-number form of a rate with room for some tokens at once and, behind them, for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Units that one token costs.
    pub units_per_token: u64,
    /// Units that drain in one microsecond.
    pub units_per_us: u64,
    /// Up to this level a caller goes at once.
    pub capacity: u64,
    /// Up to this level a caller may wait.
    pub queue: u64,
}

/// What a demand does to a level.
#[derive(Clone, Copy, Debug)]
pub struct LevelOutcome {
    code: DecisionCode,
    /// The level after the demand, or as it was when the demand is denied.
    pub level: u64,
    /// The units that must drain before it is time; zero when it is.
    pub excess: u64,
    /// When to ask again, where units of another quota must drain.
    retry: Option<Micros>,
}

impl LevelOutcome {
    #[inline(always)]
    fn new(verb: DecisionCode, level: u64, excess: u64) -> Self {
        Self { code: verb, level, excess, retry: None }
    }

    /// Whether the demand is granted, now or later.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.code, DecisionCode::Allow | DecisionCode::Delay)
    }
}

/// Words of state: when the level was last written, and the level then.
const UPDATED_AT: usize = 0;
const LEVEL: usize = 1;
pub(crate) const STATE_LEN: usize = 2;

/// 71 years. The moment at which any debt is repaid is then still a number that a double holds exactly.
const MAX_DEBT: Micros = Micros::new(1 << 51);

/// The twin of this file.
pub(super) const LUA: &str = include_str!("level.lua");

impl Meter {
    /// The meter of `rate` that lets `concurrency` tokens go together, and `queued` more wait.
    pub(super) fn new(rate: Rate, at_once: u64, queued: u64) -> Result<Self, QuotaError> {
        let divisor = gcd(rate.amount(), rate.period().get());
        let (price, drain) = (rate.period().get() / divisor, rate.amount() / divisor);
        let capacity = at_once.checked_mul(price);
        let queue = at_once.checked_add(queued).and_then(|all| all.checked_mul(price));
        match (capacity, queue) {
            // Twice the level and one step of drain must stay exact in a double, where Redis computes them.
            (Some(capacity), Some(queue)) if queue <= (LARGEST_EXACT - drain.min(LARGEST_EXACT)) / 2 => {
                Ok(Self { units_per_token: price, units_per_us: drain, capacity, queue })
            }
            _ => Err(QuotaError::inexact(rate, at_once.saturating_add(queued), price)),
        }
    }

    /// Without a bound on the queue, as far as numbers stay exact.
    pub(super) fn with_unbounded_queue(self) -> Self {
        Self { queue: self.max_level(), ..self }
    }

    /// The highest level: as much as drains in the longest debt, or what the queue holds.
    fn max_level(&self) -> u64 {
        self.queue.max(self.units_per_us.saturating_mul(MAX_DEBT.get()).min(LARGEST_EXACT))
    }

    /// The decision that the twin in Lua gave: a verb, the level, the units over the capacity, and the time until another try where
    /// these are units of another quota.
    pub(super) fn decode_reply(&self, [verb, level, excess, retry]: [u64; 4]) -> Option<Decision> {
        let retry = (retry > 0).then_some(Micros::new(retry));
        Some(self.to_decision(LevelOutcome { code: DecisionCode::from_lua(verb)?, level, excess, retry }))
    }

    /// What the twin in Lua needs to know.
    pub(super) fn lua_args(&self) -> LuaArgs {
        let Self { units_per_token: price, units_per_us: drain, capacity, queue } = *self;
        [price as f64, drain as f64, capacity as f64, queue as f64, 0.0, 0.0]
    }

    /// What `demand` does to a level that has been drained up to now.
    #[inline(always)]
    pub fn evaluate(&self, level: u64, demand: Demand) -> LevelOutcome {
        let units = demand.cost.saturating_mul(self.units_per_token);
        // One token always fits an empty bucket; where the cost is known to be one, nothing is compared.
        if demand.cost > 1 && units > self.capacity {
            return self.evaluate_oversized(level, units, demand);
        }
        let after = level + units;
        let excess = after.saturating_sub(self.capacity);
        match excess {
            0 => LevelOutcome::new(DecisionCode::Allow, after, excess),
            _ => self.evaluate_wait(level, after, excess, demand),
        }
    }

    /// A cost that is larger than the capacity: on credit it needs no more than all of it.
    fn evaluate_oversized(&self, level: u64, units: u64, demand: Demand) -> LevelOutcome {
        let after = level.saturating_add(units).min(self.max_level());
        let is_charged = match demand.overdraft {
            Overdraft::Refuse => false,
            Overdraft::Grant => units <= self.max_level().saturating_sub(level),
            // Work that has been done is charged, as far as numbers go.
            Overdraft::Force => true,
        };
        match level {
            _ if !is_charged => LevelOutcome::new(DecisionCode::Never, level, 0),
            0 => LevelOutcome::new(DecisionCode::Allow, after, 0),
            _ => self.evaluate_wait(level, after, level, demand),
        }
    }

    /// A cost that finds room only when `excess` has drained: within the caller's patience and the queue?
    #[inline(always)]
    fn evaluate_wait(&self, level: u64, after: u64, excess: u64, demand: Demand) -> LevelOutcome {
        let deny = |excess| LevelOutcome::new(DecisionCode::Deny, level, excess);
        let exceeds_max_wait = excess > self.units_per_us.saturating_mul(demand.max_wait.get());
        let over_queue = excess.saturating_sub(self.queue - self.capacity);
        match demand.overdraft {
            Overdraft::Force => {}
            _ if demand.max_wait == Micros::ZERO || exceeds_max_wait => return deny(excess),
            _ if over_queue > 0 => return deny(over_queue),
            _ => {}
        }
        // Forced charges may pile up, but not for ever.
        LevelOutcome::new(DecisionCode::Delay, after.min(self.max_level()), excess)
    }

    /// The decision that a judgement amounts to.
    #[inline]
    pub fn to_decision(&self, outcome: LevelOutcome) -> Decision {
        let LevelOutcome { code: verb, level, excess, retry } = outcome;
        let Self { units_per_token: price, units_per_us: drain, capacity, .. } = *self;
        if let Some(wait) = retry {
            let remaining = capacity.saturating_sub(level) / price;
            let reset = Micros::new(level.div_ceil(drain));
            return Decision::from_count(verb, capacity / price, CountReading { remaining, reset, wait });
        }
        Decision::from_level(
            verb,
            Reading { level, excess, capacity, units_per_token: price, units_per_us: drain },
        )
    }

    /// The part of a charge that time has not given back already, and that may be given back now.
    ///
    /// `after` is the level that the charge left behind, `elapsed` the time since. As long as that level is above
    /// the capacity nobody before us is refunded, so what is left of it is ours. From then on others may have
    /// given back what lay below us, and all that is certain is our cost less what has drained since.
    fn refundable(&self, after: u64, elapsed: Micros, cost: u64) -> u64 {
        let drained = self.units_per_us.saturating_mul(elapsed.get());
        let drained_below_capacity = drained.saturating_sub(after.saturating_sub(self.capacity));
        let certain = cost.saturating_mul(self.units_per_token).saturating_sub(drained_below_capacity);
        certain.min(after.saturating_sub(drained))
    }

    /// The level that is left of `level` at `now` when `cost` of a charge is given back.
    ///
    /// Whoever waits was told when to go, and goes then. So a place before others who wait stays empty, or those
    /// who cancel and ask again would gather at the same moment; and a caller that still waits itself gives back
    /// all or nothing.
    pub fn level_after_refund(&self, level: u64, now: Micros, receipt: &Receipt, cost: u64) -> u64 {
        let elapsed = now.since(receipt.at);
        let drained = self.units_per_us.saturating_mul(elapsed.get());
        let units = receipt.cost.saturating_mul(self.units_per_token);
        let needed = receipt.mark.saturating_sub(units) + units.min(self.capacity);

        let waits = drained < needed.saturating_sub(self.capacity);
        let others_wait_behind = level > self.capacity && level > receipt.mark.saturating_sub(drained);
        if others_wait_behind || (waits && cost < receipt.cost) {
            return level;
        }
        level.saturating_sub(self.refundable(receipt.mark, elapsed, cost))
    }

    /// A level that `writer` wrote as a level of this meter: as many tokens, rounded against the caller.
    pub fn convert(&self, writer: &Self, level: u64) -> u64 {
        mul_div_ceil(level, self.units_per_token, writer.units_per_token).min(self.max_level())
    }

    /// What `demand` does to a level that `writer` wrote and that has been drained up to now.
    ///
    /// A denial leaves the level to `writer`, at whose rate it goes on draining: that is what its retry time goes by.
    pub fn evaluate_carried(&self, writer: &Self, level: u64, demand: Demand) -> LevelOutcome {
        let converted = self.convert(writer, level);
        let mut outcome = self.evaluate(converted, demand);
        if outcome.code == DecisionCode::Deny {
            let goal = mul_div_floor(
                converted.saturating_sub(outcome.excess),
                writer.units_per_token,
                self.units_per_token,
            );
            outcome.retry = Some(Micros::new(level.saturating_sub(goal).div_ceil(writer.units_per_us)));
        }
        outcome
    }

    /// The state of a level at a moment.
    pub fn encode_state(at: Micros, level: u64) -> [u64; STATE_LEN] {
        let mut words = [0; STATE_LEN];
        words[UPDATED_AT] = at.get();
        words[LEVEL] = level;
        words
    }

    /// The level that a state means at `now`.
    pub fn level_at<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        self.advance(state, now).0
    }

    /// The level at `now`, and the moment it holds for: time that runs backwards stands still.
    fn advance<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (u64, Micros) {
        let last = Micros::new(state.get(UPDATED_AT));
        let drained = self.units_per_us.saturating_mul(now.since(last).get());
        (state.get(LEVEL).saturating_sub(drained), now.max(last))
    }

    pub(super) fn decide<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let (level, at) = self.advance(state, now);
        self.apply(state, at, level, self.evaluate(level, demand), demand)
    }

    pub(super) fn decide_carried<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let (level, at) = writer.advance(state, now);
        let outcome = self.evaluate_carried(writer, level, demand);
        self.apply(state, at, self.convert(writer, level), outcome, demand)
    }

    /// Charges what was granted to a level.
    fn apply<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        at: Micros,
        level: u64,
        mut outcome: LevelOutcome,
        demand: Demand,
    ) -> ChargeResult {
        let mut receipt = Receipt::default();
        if demand.effect == Effect::Probe && outcome.is_granted() {
            // A probe tells what would be granted, and what remains without it.
            outcome.level = level;
        } else if outcome.is_granted() && demand.cost > 0 {
            state.set(UPDATED_AT, at.get());
            state.set(LEVEL, outcome.level);
            receipt = self.new_receipt(demand.cost, at, level, outcome.level);
        }
        ChargeResult { decision: self.to_decision(outcome), receipt }
    }

    /// Proof of a charge that lifted a level: of no more than it was lifted by.
    #[inline]
    pub fn new_receipt(&self, cost: u64, at: Micros, before: u64, after: u64) -> Receipt {
        let charged = match after - before < cost.saturating_mul(self.units_per_token) {
            true => (after - before) / self.units_per_token,
            false => cost,
        };
        Receipt { cost: charged, at, mark: after, ..Receipt::default() }
    }

    pub(super) fn refund<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
        cost: u64,
    ) {
        let (level, at) = self.advance(state, now);
        state.set(UPDATED_AT, at.get());
        state.set(LEVEL, self.level_after_refund(level, at, &receipt, cost));
    }

    pub(super) fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
        let (level, at) = writer.advance(state, now);
        state.set(UPDATED_AT, at.get());
        state.set(LEVEL, self.convert(writer, level));
    }
}

/// What an algorithm with a `rate` and a `meter` does as the meter does.
macro_rules! level_methods {
    () => {
        fn lua_args(&self) -> LuaArgs {
            self.meter.lua_args()
        }

        fn decode_reply(&self, answer: [u64; 4]) -> Option<Decision> {
            self.meter.decode_reply(answer)
        }

        fn state_len(&self) -> usize {
            $crate::algorithm::level::STATE_LEN
        }

        fn rate(&self) -> Option<Rate> {
            Some(self.rate)
        }

        fn decide<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.meter.decide(state, now, demand)
        }

        fn refund<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            receipt: Receipt,
            cost: u64,
        ) {
            self.meter.refund(state, now, receipt, cost);
        }

        /// Tokens are tokens at any rate.
        fn shares_state(&self, _other: &Self) -> bool {
            true
        }

        fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
            self.meter.carry_over(&writer.meter, state, now);
        }

        fn decide_carried<W: AlgorithmState + ?Sized>(
            &self,
            writer: &Self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.meter.decide_carried(&writer.meter, state, now, demand)
        }
    };
}
pub(super) use level_methods;
