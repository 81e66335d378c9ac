//! Concurrency: limits the number of calls in flight, regardless of their duration.
//!
//! ```text
//!   limit ┤‾‾‾‾‾‾‾‾‾‾‾  full: denied until one is released
//!         │ ▉▉▉▉▉
//!       0 ┼──────────▶  in flight
//! ```
//!
//! A permit is in use until it is released; time alone frees nothing. So there is no retry time, and a denial
//! reports [`Retry::WhenReleased`](crate::Retry::WhenReleased); use a queue to wait.
//!
//! With a `lease` a permit expires after that time (up to an eighth later) unless it is renewed, so that a crashed
//! holder frees its permit. A store that several processes share needs a lease.
//!
//! Note that with a latency of `t` seconds a limit of `n` is a rate of `n / t`, which falls when the backend slows
//! down. This protects the backend.

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

/// A limit on the number of permits in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Concurrency {
    limit: u64,
    /// Permits with a lease are counted at the time they were acquired or renewed, in the counters of a strict
    /// sliding window, which drops everything older than the lease.
    lease: Option<SlidingStrict>,
}

/// The only word of state without a lease: the number of permits in flight.
const IN_FLIGHT: usize = 0;

/// The number of parts of a lease.
const LEASE_PARTS: u64 = 8;
/// The maximum number of words of state: the newest part, and a ring of one more than the parts of a lease.
const MAX_STATE_LEN: usize = LEASE_PARTS as usize + 2;

impl Concurrency {
    /// At most `limit` permits, each until it is released.
    pub fn new(limit: u64) -> Result<Self, QuotaError> {
        QuotaError::require_nonzero("a concurrency limit", limit)?;
        QuotaError::require_exact("a concurrency limit", limit)?;
        Ok(Self { limit, lease: None })
    }

    /// At most `limit` permits, each until it is released or has not been renewed for `lease`.
    pub fn with_lease(limit: u64, lease: Micros) -> Result<Self, QuotaError> {
        let it = Self::new(limit)?;
        QuotaError::require_nonzero("a lease", lease.get())?;
        let lease = Micros::new(lease.get().next_multiple_of(LEASE_PARTS));
        SlidingStrict::new(Rate::new(limit, lease), LEASE_PARTS)
            .map(|lease| Self { lease: Some(lease), ..it })
    }

    /// The time after which a permit expires unless it is renewed.
    pub fn lease(&self) -> Option<Micros> {
        self.lease.and_then(|lease| Algorithm::rate(&lease)).map(Rate::period)
    }

    /// Whether both have the same state representation.
    fn has_same_layout(&self, other: &Self) -> bool {
        self.lease.map(|lease| lease.part_len()) == other.lease.map(|lease| lease.part_len())
    }

    /// The permits in flight at `now`, and the time that counts as `now`.
    fn in_flight<W: AlgorithmState + ?Sized>(&self, state: &W, now: Micros) -> (u64, Micros) {
        match self.lease {
            None => (state.get(IN_FLIGHT), now),
            Some(lease) => {
                let at = lease.effective_now(state, now);
                (lease.count_used(state, at.get() / lease.part_len()), at)
            }
        }
    }

    /// The time until all permits have expired.
    fn expiry<W: AlgorithmState + ?Sized>(&self, state: &W, in_flight: u64, now: Micros) -> Micros {
        match self.lease {
            Some(lease) => lease.reset_at(state).saturating_sub(now),
            None if in_flight == 0 => Micros::ZERO,
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

    fn lua_args(&self, _now: Micros) -> LuaArgs {
        let (part, parts) = self.lease.map_or((0, 0), |lease| (lease.part_len(), lease.parts));
        [self.limit as f64, part as f64, parts as f64, 0.0, 0.0, 0.0, 0.0]
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

        let code = if demand.cost > self.limit {
            DecisionCode::Never
        } else if in_flight + demand.cost > self.limit {
            DecisionCode::LimitReached
        } else {
            DecisionCode::Allow
        };
        if code == DecisionCode::Allow && demand.effect == Effect::Charge && demand.cost > 0 {
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
        ChargeResult { decision: Decision::from_count(code, self.limit, count), receipt }
    }

    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64) {
        match self.lease {
            None => state.set(IN_FLIGHT, state.get(IN_FLIGHT).saturating_sub(cost)),
            Some(lease) => lease.refund(state, now, receipt, cost),
        }
    }

    /// Permits in flight stay in use under any limit.
    fn shares_state(&self, _other: &Self) -> bool {
        true
    }

    fn convert_state<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
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

    fn decide_converted<W: AlgorithmState + ?Sized>(
        &self,
        writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        if self.has_same_layout(writer) {
            return self.decide(state, now, demand);
        }
        // Decides on a copy, because a denial must not change the representation of the writer.
        let mut copy = [0; MAX_STATE_LEN];
        let state_len = self.state_len().max(writer.state_len());
        copy.iter_mut().take(writer.state_len()).enumerate().for_each(|(word, copy)| *copy = state.get(word));
        self.convert_state(writer, copy.as_mut_slice(), now);
        let result = self.decide(copy.as_mut_slice(), now, demand);
        if result.receipt.cost > 0 {
            copy.iter().take(state_len).enumerate().for_each(|(word, copy)| state.set(word, *copy));
        }
        result
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
        let is_valid = taken + lease.parts >= at.get() / lease.part_len()
            && state.get(lease.slot(taken)) >= receipt.cost;
        is_valid.then(|| {
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
