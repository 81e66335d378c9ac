//! A level that rises with cost and drains with time, in integer units.
//!
//! A quota of `amount` per `period` is reduced by its greatest common divisor: a token costs `units_per_token`
//! units, and one microsecond drains `units_per_us` units. Nothing is rounded, so the rate does not drift under
//! any pattern of calls.

use super::{ChargeResult, Demand, Effect, LuaArgs, Overdraft, Receipt};
use crate::{
    decision::{CountReading, Decision, DecisionCode, LevelReading as Reading},
    math::{gcd, mul_div_ceil, mul_div_floor},
    quota::{QuotaError, Rate},
    state::AlgorithmState,
    units::{LARGEST_EXACT, Micros},
};

/// The integer form of a rate with a burst capacity and a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerBucket {
    /// Units that one token costs.
    pub units_per_token: u64,
    /// Units that drain in one microsecond.
    pub units_per_us: u64,
    /// Up to this level a call proceeds at once.
    pub capacity: u64,
    /// Up to this level a call may wait.
    pub queue: u64,
    /// The level of a new key. If it is above zero, a key is stored for [`RETENTION`] after it has drained, and is new
    /// again then.
    pub initial_level: u64,
}

/// The result of a demand on a level.
#[derive(Clone, Copy, Debug)]
pub struct LevelOutcome {
    code: DecisionCode,
    /// The level after the demand; unchanged by a denial.
    pub level: u64,
    /// The units that must drain before the call may proceed; zero if it proceeds now.
    pub excess: u64,
    /// The retry time, if the units of another quota must drain.
    retry: Option<Micros>,
}

impl LevelOutcome {
    #[inline(always)]
    fn new(code: DecisionCode, level: u64, excess: u64) -> Self {
        Self { code, level, excess, retry: None }
    }

    /// Whether the demand is granted, now or later.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.code, DecisionCode::Allow | DecisionCode::Delay)
    }
}

/// The words of state: the time of the last write, and the level at that time.
const UPDATED_AT: usize = 0;
const LEVEL: usize = 1;
pub(crate) const STATE_LEN: usize = 2;

/// The time for which a key that does not start at level zero is stored after it has drained.
pub const RETENTION: Micros = Micros::from_secs(3_600);

/// 71 years. The time at which the largest debt is repaid is still exact in a double.
const MAX_DEBT: Micros = Micros::new(1 << 51);

/// The Lua port of this file.
pub(super) const LUA: &str = include_str!("level.lua");

impl IntegerBucket {
    /// A meter of `rate` that admits `at_once` tokens together, with a queue of `queued` more.
    pub(super) fn new(rate: Rate, at_once: u64, queued: u64) -> Result<Self, QuotaError> {
        let divisor = gcd(rate.amount(), rate.period().get());
        let (units_per_token, units_per_us) = (rate.period().get() / divisor, rate.amount() / divisor);
        let capacity = at_once.checked_mul(units_per_token);
        let queue = at_once.checked_add(queued).and_then(|all| all.checked_mul(units_per_token));
        match (capacity, queue) {
            // Redis computes in doubles: twice the level plus one step of drain must be exact.
            (Some(capacity), Some(queue))
                if queue <= (LARGEST_EXACT - units_per_us.min(LARGEST_EXACT)) / 2 =>
            {
                Ok(Self { units_per_token, units_per_us, capacity, queue, initial_level: 0 })
            }
            _ => Err(QuotaError::inexact(rate, at_once.saturating_add(queued), units_per_token)),
        }
    }

    /// Returns the meter with the longest queue that is exact.
    pub(super) fn with_unbounded_queue(self) -> Self {
        Self { queue: self.max_level(), ..self }
    }

    /// Returns the meter for keys that start with `tokens` of the capacity.
    pub(super) fn with_initial_tokens(self, tokens: u64) -> Self {
        let initial = tokens.saturating_mul(self.units_per_token);
        Self { initial_level: self.capacity.saturating_sub(initial), ..self }
    }

    /// The highest level: the drain of the longest debt, or the length of the queue.
    fn max_level(&self) -> u64 {
        self.queue.max(self.units_per_us.saturating_mul(MAX_DEBT.get()).min(LARGEST_EXACT))
    }

    /// Decodes a reply of the Lua port: a code, the level, the units above the capacity, and the retry time if
    /// these are units of another quota.
    pub(super) fn decode_reply(&self, [code, level, excess, retry]: [u64; 4]) -> Option<Decision> {
        let retry = (retry > 0).then_some(Micros::new(retry));
        Some(self.to_decision(LevelOutcome { code: DecisionCode::from_lua(code)?, level, excess, retry }))
    }

    /// The parameters for the Lua port.
    pub(super) fn lua_args(&self) -> LuaArgs {
        let Self { units_per_token, units_per_us, capacity, queue, initial_level } = *self;
        [units_per_token, units_per_us, capacity, queue, initial_level, self.retention().get(), 0]
            .map(|number| number as f64)
    }

    /// Evaluates `demand` on a level that has been drained up to now.
    #[inline(always)]
    pub fn evaluate(&self, level: u64, demand: Demand) -> LevelOutcome {
        let units = demand.cost.saturating_mul(self.units_per_token);
        // One token always fits an empty bucket; a constant cost of one removes this branch at compile time.
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

    /// A cost above the capacity: an overdraft needs an empty bucket only.
    fn evaluate_oversized(&self, level: u64, units: u64, demand: Demand) -> LevelOutcome {
        let after = level.saturating_add(units).min(self.max_level());
        let is_charged = match demand.overdraft {
            Overdraft::Deny => false,
            Overdraft::Grant => units <= self.max_level().saturating_sub(level),
            // Work that has been done is charged, up to the highest level.
            Overdraft::Force => true,
        };
        match level {
            _ if !is_charged => LevelOutcome::new(DecisionCode::Never, level, 0),
            0 => LevelOutcome::new(DecisionCode::Allow, after, 0),
            _ => self.evaluate_wait(level, after, level, demand),
        }
    }

    /// A cost that must wait until `excess` has drained; denied beyond `max_wait` or the queue.
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
        // Forced charges accumulate up to the highest level.
        LevelOutcome::new(DecisionCode::Delay, after.min(self.max_level()), excess)
    }

    /// The highest level at which `cost` proceeds at once; `None` if it exceeds the capacity.
    #[inline]
    pub fn highest_level_for(&self, cost: u64) -> Option<u64> {
        self.capacity.checked_sub(cost.checked_mul(self.units_per_token)?)
    }

    /// The decision on a cost that has raised the level to `level`.
    #[inline(always)]
    pub fn allow(&self, level: u64) -> Decision {
        self.to_decision(LevelOutcome::new(DecisionCode::Allow, level, 0))
    }

    /// The decision on a cost that exceeds the capacity by `excess` units, at this level.
    #[inline(always)]
    pub fn deny(&self, level: u64, excess: u64) -> Decision {
        self.to_decision(LevelOutcome::new(DecisionCode::Deny, level, excess))
    }

    /// Converts an outcome to a decision.
    #[inline]
    pub fn to_decision(&self, outcome: LevelOutcome) -> Decision {
        let LevelOutcome { code, level, excess, retry } = outcome;
        let Self { units_per_token, units_per_us, capacity, .. } = *self;
        match retry {
            None => {
                Decision::from_level(code, Reading { level, excess, capacity, units_per_token, units_per_us })
            }
            Some(wait) => self.count_decision(code, level, wait).repack(),
        }
    }

    /// Not inlined, so that the usual decision is built in registers.
    #[cold]
    #[inline(never)]
    fn count_decision(&self, code: DecisionCode, level: u64, wait: Micros) -> Decision {
        let Self { units_per_token, units_per_us, capacity, .. } = *self;
        let remaining = capacity.saturating_sub(level) / units_per_token;
        let reset = Micros::new(level.div_ceil(units_per_us));
        Decision::from_count(code, capacity / units_per_token, CountReading { remaining, reset, wait })
    }

    /// The units of a charge that a refund may return: those that time has not returned already.
    ///
    /// `after` is the level after the charge, `elapsed` the time since. While that level is above the capacity, no
    /// earlier charge is refunded, so the level that is left belongs to this charge. Below the capacity, earlier
    /// charges may have been refunded; only the cost minus the units drained since is certain.
    fn refundable(&self, after: u64, elapsed: Micros, cost: u64) -> u64 {
        let drained = self.units_per_us.saturating_mul(elapsed.get());
        let drained_below_capacity = drained.saturating_sub(after.saturating_sub(self.capacity));
        let certain = cost.saturating_mul(self.units_per_token).saturating_sub(drained_below_capacity);
        certain.min(after.saturating_sub(drained))
    }

    /// The level at `now` after a refund of `cost` of a charge.
    ///
    /// Waiting callers keep their admission times. So a refund does not move up callers behind it; otherwise
    /// callers that cancel and retry would gather at the same time. A caller that still waits refunds its whole
    /// charge or nothing.
    pub fn level_after_refund(&self, level: u64, now: Micros, receipt: &Receipt, cost: u64) -> u64 {
        let elapsed = now.saturating_sub(receipt.at);
        let drained = self.units_per_us.saturating_mul(elapsed.get());
        let units = receipt.cost.saturating_mul(self.units_per_token);
        let needed = receipt.level_or_debt.saturating_sub(units) + units.min(self.capacity);

        let waits = drained < needed.saturating_sub(self.capacity);
        let others_wait_behind =
            level > self.capacity && level > receipt.level_or_debt.saturating_sub(drained);
        if others_wait_behind || (waits && cost < receipt.cost) {
            return level;
        }
        level.saturating_sub(self.refundable(receipt.level_or_debt, elapsed, cost))
    }

    /// Converts a level that `writer` wrote: the same number of tokens, rounded up.
    pub fn convert_level(&self, writer: &Self, level: u64) -> u64 {
        mul_div_ceil(level, self.units_per_token, writer.units_per_token).min(self.max_level())
    }

    /// Evaluates `demand` on a level that `writer` wrote and that has been drained up to now.
    ///
    /// A denial does not write, so the level continues to drain at the rate of `writer`, which determines the
    /// retry time.
    pub fn evaluate_converted(&self, writer: &Self, level: u64, demand: Demand) -> LevelOutcome {
        let converted = self.convert_level(writer, level);
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

    /// Encodes a level at a point in time.
    pub fn encode_state(at: Micros, level: u64) -> [u64; STATE_LEN] {
        let mut state = [0; STATE_LEN];
        state[UPDATED_AT] = at.get();
        state[LEVEL] = level;
        state
    }

    /// The level at `now`.
    pub fn level_at<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> u64 {
        self.advance(state, now).0
    }

    /// The time for which a drained state differs from that of a new key.
    pub(super) fn retention(&self) -> Micros {
        if self.initial_level == 0 { Micros::ZERO } else { RETENTION }
    }

    /// The time at which a state has drained; `None` for a new key.
    fn drained_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Option<Micros> {
        let (at, level) = (Micros::new(state.get(UPDATED_AT)), state.get(LEVEL));
        let is_used = at > Micros::ZERO || level > 0;
        is_used.then(|| at.saturating_add(Micros::new(level.div_ceil(self.units_per_us))))
    }

    /// The time from which a state is equivalent to that of a new key; zero for a new key.
    pub(super) fn forgotten_at<W: AlgorithmState + ?Sized>(&self, state: &W) -> Micros {
        let drained_at = self.drained_at(state);
        match self.initial_level {
            0 => drained_at.unwrap_or_default(),
            _ => drained_at
                .map_or(Micros::ZERO, |at| at.saturating_add(RETENTION).saturating_add(Micros::new(1))),
        }
    }

    fn is_new<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> bool {
        self.forgotten_at(state) <= now
    }

    /// Starts the refill of a new key that does not start at level zero; returns whether it did.
    pub(super) fn begin<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> bool {
        let is_started = self.initial_level > 0 && self.is_new(state, now);
        if is_started {
            state.set(LEVEL, self.initial_level);
            state.set(UPDATED_AT, now.get());
        }
        is_started
    }

    /// The level at `now`, and the time for which it is valid: a clock that runs backwards is ignored.
    fn advance<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (u64, Micros) {
        let last = Micros::new(state.get(UPDATED_AT));
        if self.initial_level > 0 && self.is_new(state, now) {
            return (self.initial_level, now.max(last));
        }
        let drained = self.units_per_us.saturating_mul(now.saturating_sub(last).get());
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

    pub(super) fn decide_converted<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        let (level, at) = writer.advance(state, now);
        if self.differs_when_new(writer) && writer.is_new(state, now) {
            return self.apply(
                state,
                at,
                self.initial_level,
                self.evaluate(self.initial_level, demand),
                demand,
            );
        }
        let outcome = self.evaluate_converted(writer, level, demand);
        self.apply(state, at, self.convert_level(writer, level), outcome, demand)
    }

    /// Whether a new key is at a level above zero under one of both.
    fn differs_when_new(&self, writer: &Self) -> bool {
        self.initial_level > 0 || writer.initial_level > 0
    }

    /// Writes a granted charge to the state.
    fn apply<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        at: Micros,
        level: u64,
        mut outcome: LevelOutcome,
        demand: Demand,
    ) -> ChargeResult {
        let mut receipt = Receipt::default();
        if demand.effect == Effect::Peek && outcome.is_granted() {
            // A probe returns whether the cost would be granted; its numbers exclude the cost.
            outcome.level = level;
        } else if outcome.is_granted() && demand.cost > 0 {
            state.set(UPDATED_AT, at.get());
            state.set(LEVEL, outcome.level);
            receipt = self.new_receipt(demand.cost, at, level, outcome.level);
        }
        ChargeResult { decision: self.to_decision(outcome), receipt }
    }

    /// A receipt for a charge that raised the level; it records at most the units by which it was raised.
    #[inline]
    pub fn new_receipt(&self, cost: u64, at: Micros, before: u64, after: u64) -> Receipt {
        let charged = match after - before < cost.saturating_mul(self.units_per_token) {
            true => (after - before) / self.units_per_token,
            false => cost,
        };
        Receipt { cost: charged, at, level_or_debt: after, ..Receipt::default() }
    }

    pub(super) fn refund<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
        cost: u64,
    ) {
        if self.initial_level > 0 && self.is_new(state, now) {
            return; // everything has been refilled
        }
        let (level, at) = self.advance(state, now);
        state.set(UPDATED_AT, at.get());
        state.set(LEVEL, self.level_after_refund(level, at, &receipt, cost));
    }

    pub(super) fn convert_state<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
    ) {
        if self.differs_when_new(writer) && writer.is_new(state, now) {
            state.set(UPDATED_AT, 0);
            state.set(LEVEL, 0);
            return;
        }
        let (level, at) = writer.advance(state, now);
        // A drained state that is still stored keeps the time at which it drained.
        let at = if level == 0 { writer.drained_at(state).unwrap_or(at).min(at) } else { at };
        state.set(UPDATED_AT, at.get());
        state.set(LEVEL, self.convert_level(writer, level));
    }
}

/// The methods of an algorithm with a `rate` and a `meter` that delegate to the meter.
macro_rules! level_methods {
    () => {
        fn lua_args(&self, _now: Micros) -> LuaArgs {
            self.integer_bucket.lua_args()
        }

        fn decode_reply(&self, reply: [u64; 4]) -> Option<Decision> {
            self.integer_bucket.decode_reply(reply)
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
            self.integer_bucket.decide(state, now, demand)
        }

        fn refund<W: AlgorithmState + ?Sized>(
            &self,
            state: &mut W,
            now: Micros,
            receipt: Receipt,
            cost: u64,
        ) {
            self.integer_bucket.refund(state, now, receipt, cost);
        }

        fn retention(&self) -> Micros {
            self.integer_bucket.retention()
        }

        fn forgotten_after<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> Micros {
            self.integer_bucket.forgotten_at(state).saturating_sub(now)
        }

        fn begin<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> bool {
            self.integer_bucket.begin(state, now)
        }

        /// Tokens are comparable between rates.
        fn shares_state(&self, _other: &Self) -> bool {
            true
        }

        fn convert_state<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
            self.integer_bucket.convert_state(&writer.integer_bucket, state, now);
        }

        fn decide_converted<W: AlgorithmState + ?Sized>(
            &self,
            writer: &Self,
            state: &mut W,
            now: Micros,
            demand: Demand,
        ) -> ChargeResult {
            self.integer_bucket.decide_converted(&writer.integer_bucket, state, now, demand)
        }
    };
}
pub(super) use level_methods;
