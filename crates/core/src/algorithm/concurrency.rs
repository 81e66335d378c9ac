//! Concurrency: so many at once, however long each takes.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾  full: denied until one is given back
//!         │ ▉▉▉▉▉
//!       0 ┼──────────▶  in flight
//! ```
//!
//! Time plays no part: a grant is held until it is given back. So there is no honest time to retry at, and the
//! answer says so; wait in a queue instead.
//!
//! With a `lease` a grant is held for that long (up to an eighth longer) unless it is renewed, so that a holder that
//! crashed gives its slot back. A store that several processes share needs one.
//!
//! Its surprise: with a latency of `t` seconds a limit of `n` is a rate of `n / t`, which falls when the backend
//! slows down. That is the point of it.

use super::{
    Algorithm, ChargeResult, Demand, Effect, LuaArgs, Receipt, SlidingStrict, sliding_strict, window,
    window::WindowAlgorithm as _,
};
use crate::{
    bound::Bound,
    decision::{CountReading, Decision, DecisionCode},
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// A number of permits that are held while work is in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    limit: u64,
    /// Permits with a lease are counted in the part of time in which they were taken or renewed: the counters of a
    /// strict sliding window, which forgets what is older than the lease.
    lease: Option<SlidingStrict>,
}

/// Without a lease there is one word of state: how many permits are held.
const IN_FLIGHT: usize = 0;

/// The parts that a lease is counted in.
const LEASE_PARTS: u64 = 8;
/// The most words that a state has: the newest part, and a ring of one part more than a lease has.
const MAX_STATE_LEN: usize = LEASE_PARTS as usize + 2;

impl Concurrency {
    /// At most `limit` at once, each until it is given back.
    pub fn new(limit: u64) -> Result<Self, QuotaError> {
        QuotaError::require_nonzero("a concurrency limit", limit)?;
        QuotaError::require_exact("a concurrency limit", limit)?;
        Ok(Self { limit, lease: None })
    }

    /// At most `limit` at once, each until it is given back or has not been renewed for `lease`.
    pub fn with_lease(limit: u64, lease: Micros) -> Result<Self, QuotaError> {
        let it = Self::new(limit)?;
        QuotaError::require_nonzero("a lease", lease.get())?;
        let lease = Micros::new(lease.get().next_multiple_of(LEASE_PARTS));
        SlidingStrict::new(Rate::new(limit, lease), LEASE_PARTS)
            .map(|lease| Self { lease: Some(lease), ..it })
    }

    /// How long a permit is held at least, if it is neither renewed nor given back.
    pub fn lease(&self) -> Option<Micros> {
        self.lease.and_then(|lease| Algorithm::rate(&lease)).map(Rate::period)
    }

    /// Whether a state means the same under both.
    fn has_same_layout(&self, other: &Self) -> bool {
        self.lease.map(|lease| lease.part_len()) == other.lease.map(|lease| lease.part_len())
    }

    /// What is held at `now`, and the moment that counts as now.
    fn in_flight<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (u64, Micros) {
        match self.lease {
            None => (state.get(IN_FLIGHT), now),
            Some(lease) => {
                let at = lease.effective_now(state, now);
                (lease.count_used(state, at.get() / lease.part_len()), at)
            }
        }
    }

    /// When all that is held will have expired.
    fn expiry<W: AlgorithmState + ?Sized>(&self, state: &W, held: u64, now: Micros) -> Micros {
        match self.lease {
            Some(lease) => lease.reset_at(state).since(now),
            None if held == 0 => Micros::ZERO,
            None => Micros::MAX,
        }
    }
}

impl Algorithm for Concurrency {
    const NAMES: &'static [&'static str] = &["concurrency"];
    const LUA_SOURCES: &'static [&'static str] = &[
        super::PRELUDE_LUA,
        super::CONVERT_LUA,
        window::LUA,
        sliding_strict::LUA,
        include_str!("concurrency.lua"),
    ];

    fn lua_args(&self) -> LuaArgs {
        let (part, parts) = self.lease.map_or((0, 0), |lease| (lease.part_len(), lease.parts));
        [self.limit as f64, part as f64, parts as f64, 0.0, 0.0, 0.0]
    }

    fn parse(rate: Rate, _reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError> {
        Err(QuotaError::concurrency_has_no_rate(rate))
    }

    fn state_len(&self) -> usize {
        self.lease.map_or(1, |lease| lease.state_len())
    }

    fn rate(&self) -> Option<Rate> {
        None
    }

    fn limit(&self) -> u64 {
        self.limit
    }

    fn bound(&self) -> Bound {
        Bound::concurrency(self.limit)
    }

    fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult {
        let (mut in_flight, at) = self.in_flight(state, now);
        let mut receipt = Receipt::default();

        let verb = if demand.cost > self.limit {
            DecisionCode::Never
        } else if in_flight + demand.cost > self.limit {
            DecisionCode::Full
        } else {
            DecisionCode::Allow
        };
        if verb == DecisionCode::Allow && demand.effect == Effect::Charge && demand.cost > 0 {
            in_flight += demand.cost;
            match self.lease {
                None => state.set(IN_FLIGHT, in_flight),
                Some(lease) => lease.record(state, at, demand.cost),
            }
            receipt = Receipt { cost: demand.cost, at, ..Receipt::default() };
        }

        let reset = self.expiry(state, in_flight, now);
        let count =
            CountReading { remaining: self.limit.saturating_sub(in_flight), reset, wait: Micros::ZERO };
        ChargeResult { decision: Decision::from_count(verb, self.limit, count), receipt }
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64) {
        match self.lease {
            None => state.set(IN_FLIGHT, state.get(IN_FLIGHT).saturating_sub(cost)),
            Some(lease) => lease.refund(state, now, receipt, cost),
        }
    }

    /// Permits in flight are facts: they stay held under any limit.
    fn shares_state(&self, _other: &Self) -> bool {
        true
    }

    fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
        if self.has_same_layout(writer) {
            return;
        }
        let (in_flight, at) = writer.in_flight(state, now);
        (0..self.state_len()).for_each(|word| state.set(word, 0));
        match self.lease {
            None => state.set(IN_FLIGHT, in_flight),
            Some(lease) if at > now => {
                lease.record(state, Micros::new(at.get().next_multiple_of(lease.part_len())), in_flight);
            }
            Some(lease) => lease.record(state, at, in_flight),
        }
    }

    fn decide_carried<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        if self.has_same_layout(writer) {
            return self.decide(state, now, demand);
        }
        // On a copy: a denial must leave what is held as the writer counts it.
        let mut copy = [0; MAX_STATE_LEN];
        let words = self.state_len().max(writer.state_len());
        copy.iter_mut().take(writer.state_len()).enumerate().for_each(|(word, copy)| *copy = state.get(word));
        self.carry_over(writer, copy.as_mut_slice(), now);
        let step = self.decide(copy.as_mut_slice(), now, demand);
        if step.receipt.cost > 0 {
            copy.iter().take(words).enumerate().for_each(|(word, copy)| state.set(word, *copy));
        }
        step
    }

    fn renew<W: AlgorithmState + ?Sized>(
        &self,
        state: &mut W,
        now: Micros,
        receipt: Receipt,
    ) -> Option<Receipt> {
        let Some(lease) = self.lease else { return Some(receipt) };
        let (_, at) = self.in_flight(state, now);
        let taken = receipt.at.get() / lease.part_len();
        let is_held = taken + lease.parts >= at.get() / lease.part_len()
            && state.get(lease.slot(taken)) >= receipt.cost;
        is_held.then(|| {
            lease.refund(state, now, receipt, receipt.cost);
            lease.record(state, at, receipt.cost);
            Receipt { at, ..receipt }
        })
    }
}

impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at once", self.limit)?;
        self.lease().map_or(Ok(()), |lease| write!(f, " lease {lease}"))
    }
}
