//! The algorithms: one file each, and one line each in the registry below.
//!
//! Every algorithm is a pure function `state + now + demand → decision`, on state words that a store provides.

mod calendar_window;
mod concurrency;
mod fixed_window;
mod leaky_bucket;
pub mod level;
mod sliding_log;
mod sliding_strict;
mod sliding_window;
mod smooth;
mod smooth_rate;
mod token_bucket;
mod total;
mod warm_up;
mod window;

pub use calendar_window::CalendarWindow;
pub use concurrency::Concurrency;
pub use fixed_window::{FixedWindow, WindowStart};
pub use leaky_bucket::LeakyBucket;
pub use sliding_log::SlidingLog;
pub use sliding_strict::SlidingStrict;
pub use sliding_window::SlidingWindow;
pub use smooth::Smooth;
pub use token_bucket::TokenBucket;
pub use total::Total;
pub use warm_up::WarmUp;

use crate::{
    bound::Bound,
    decision::{CountReading, Decision, DecisionCode},
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// One check of a quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The number of tokens, permits or bytes. Zero reads the state without a charge.
    pub cost: u64,
    /// The longest wait that the caller accepts; zero to proceed now or be denied.
    pub max_wait: Micros,
    /// How a cost above the limit is handled.
    pub overdraft: Overdraft,
    /// Whether an allowed cost is charged.
    pub effect: Effect,
}

impl Demand {
    /// Charges `cost` now or denies.
    #[inline]
    pub const fn new(cost: u64) -> Self {
        Self { cost, max_wait: Micros::ZERO, overdraft: Overdraft::Deny, effect: Effect::Charge }
    }

    /// Charges `cost` if the wait is at most `max_wait`.
    pub const fn with_max_wait(cost: u64, max_wait: Micros) -> Self {
        Self { max_wait, ..Self::new(cost) }
    }

    /// Checks `cost` without a charge.
    pub const fn peek(cost: u64) -> Self {
        Self { effect: Effect::Peek, ..Self::new(cost) }
    }

    /// Charges `cost` in any state: for work that has already been done.
    pub const fn forced(cost: u64) -> Self {
        Self { cost, max_wait: Micros::MAX, overdraft: Overdraft::Force, effect: Effect::Charge }
    }

    /// Returns the same demand with an overdraft: a cost above the burst is granted as soon as a full burst is
    /// available, and later callers wait until the remaining cost is repaid.
    #[must_use]
    pub const fn with_overdraft(self) -> Self {
        Self { overdraft: Overdraft::Grant, ..self }
    }
}

/// How a cost above the limit is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdraft {
    /// Deny it with [`Retry::Never`](crate::Retry::Never).
    Deny,
    /// Grant it when a full burst is available, and repay the remaining cost first.
    Grant,
    /// Charge it in any state and with any queue length.
    Force,
}

/// Whether a granted demand changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charge the cost.
    Charge,
    /// Return the decision without a charge.
    Peek,
}

/// A decision, and the receipt for a refund of its charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeResult {
    /// The decision.
    pub decision: Decision,
    /// The record of the charge; empty when nothing was charged.
    pub receipt: Receipt,
}

/// The record of a charge. A refund returns at most the part that time has not returned already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The amount that was charged and has not been refunded yet.
    pub cost: u64,
    /// The time at which the charge is counted.
    pub at: Micros,
    /// A value of the algorithm.
    pub level_or_debt: u64,
    /// A second value of the algorithm.
    pub permits_or_epoch: u64,
}

/// Whether the usage of a key carries over when its quota changes.
///
/// A state records which quota wrote it. Another quota that [shares its state](AlgorithmKind::shares_state) reads
/// it, and writes only when it admits. A quota that does not share it has a separate state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CarryOver {
    /// The usage carries over.
    #[default]
    Keep,
    /// The new quota starts with an empty state; while both are in use, their bounds add up. Permits in flight
    /// stay in use. If more than nine quotas are in use at a time, some share states.
    Reset,
}

/// The parameters of a quota for its Lua port, in the order that the Lua file documents; unused ones are zero.
pub type LuaArgs = [f64; 7];

/// The interface of an algorithm. The methods that decide are pure: time is an argument.
pub trait Algorithm: Copy + fmt::Display {
    /// The names that select the algorithm in a quota, the canonical one first.
    const NAMES: &'static [&'static str];

    /// The source of the Lua port: files to load in this order; the last one defines the algorithm.
    const LUA_SOURCES: &'static [&'static str];

    /// The parameters of this quota for the Lua port, if the caller's clock shows `now`.
    fn lua_args(&self, now: Micros) -> LuaArgs;

    /// Decodes a reply of the Lua port: a code and three numbers. `None` for an unknown code.
    fn decode_reply(&self, [code, remaining, reset, wait]: [u64; 4]) -> Option<Decision> {
        let (reset, wait) = (Micros::new(reset), Micros::new(wait));
        Some(Decision::from_count(
            DecisionCode::from_lua(code)?,
            self.limit(),
            CountReading { remaining, reset, wait },
        ))
    }

    /// Parses the parameters after the name.
    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError>;

    /// The number of 64-bit words of state per key.
    fn state_len(&self) -> usize;

    /// The rate of the quota; `None` for an algorithm without a period.
    fn rate(&self) -> Option<Rate>;

    /// The most that is granted at once.
    fn limit(&self) -> u64;

    /// The most that the quota admits in a window, in the worst case.
    fn bound(&self) -> Bound;

    /// Decides a demand at `now`. A grant is charged and returns a receipt; a denial writes nothing.
    fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult;

    /// Refunds up to `cost` of the charge that `receipt` records, and never creates a token.
    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64);

    /// Whether this quota can read a state that `other` wrote.
    fn shares_state(&self, other: &Self) -> bool;

    /// Converts a state that `writer` wrote to this quota. Does nothing if both use the same representation.
    fn convert_state<W: AlgorithmState + ?Sized>(&self, _writer: &Self, _state: &mut W, _now: Micros) {}

    /// Decides a demand on a state that `writer` wrote. Only a charge writes, and it writes a state of this quota.
    fn decide_converted<W: AlgorithmState + ?Sized>(
        &self,
        _writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        self.decide(state, now, demand)
    }

    /// Starts a key at its first check, if its state changes with time from then on; returns whether it wrote.
    ///
    /// A store calls it before a check that charges, also if that check is then denied.
    fn begin<W: AlgorithmState + ?Sized>(&self, _state: &mut W, _now: Micros) -> bool {
        false
    }

    /// How long a state is stored after its [reset](Decision::reset_after).
    fn retention(&self) -> Micros {
        Micros::ZERO
    }

    /// The time until a state is equivalent to that of an unused key; zero if it is.
    fn forgotten_after<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> Micros {
        self.decide(state, now, Demand::peek(0)).decision.reset_after()
    }

    /// Writes the state of a limiter that is created at `now`, if it differs from that of an unused key.
    fn create<W: AlgorithmState + ?Sized>(&self, _state: &mut W, _now: Micros) {}

    /// Extends the lease of the permit that `receipt` records; `None` when it has expired.
    fn renew<W: AlgorithmState + ?Sized>(
        &self,
        _state: &mut W,
        _now: Micros,
        receipt: Receipt,
    ) -> Option<Receipt> {
        Some(receipt)
    }
}

/// Shared by the Lua ports: constants and exact arithmetic.
const PRELUDE_LUA: &str = include_str!("prelude.lua");
/// Exact products, to convert states that another quota wrote.
const CONVERT_LUA: &str = include_str!("convert.lua");

/// Generates the enum of all algorithms and its dispatch.
macro_rules! algorithm_registry {
    ($($name:ident),+ $(,)?) => {
        /// Any of the algorithms, with the parameters of one quota.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum AlgorithmKind {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name($name),)+
        }

        impl AlgorithmKind {
            /// Parses the algorithm called `name` and its parameters; `None` for an unknown name.
            pub(crate) fn parse(
                name: &str, rate: Rate, reader: &mut QuotaReader<'_>,
            ) -> Option<Result<Self, QuotaError>> {
                $(if $name::NAMES.contains(&name) {
                    return Some($name::parse(rate, reader).map(Self::$name));
                })+
                None
            }

            /// The canonical names of all algorithms.
            pub fn names() -> impl Iterator<Item = &'static str> {
                [$($name::NAMES[0]),+].into_iter()
            }

            /// The canonical name of this algorithm.
            pub fn name(&self) -> &'static str {
                match self { $(Self::$name(_) => $name::NAMES[0],)+ }
            }

            /// Its index in [`AlgorithmKind::names`].
            pub fn index(&self) -> usize {
                enum Index { $($name),+ }
                match self { $(Self::$name(_) => Index::$name as usize,)+ }
            }

            /// The Lua ports of all algorithms, in the order of [`AlgorithmKind::names`]; see
            /// [`Algorithm::LUA_SOURCES`].
            pub fn lua_sources() -> impl Iterator<Item = &'static [&'static str]> {
                [$($name::LUA_SOURCES),+].into_iter()
            }

            /// The parameters of this quota for the Lua port.
            pub fn lua_args(&self, now: Micros) -> LuaArgs {
                match self { $(Self::$name(it) => it.lua_args(now),)+ }
            }

            /// Decodes a reply of the Lua port; see [`Algorithm::decode_reply`].
            pub fn decode_reply(&self, reply: [u64; 4]) -> Option<Decision> {
                match self { $(Self::$name(it) => it.decode_reply(reply),)+ }
            }

            /// The number of 64-bit words of state per key.
            pub fn state_len(&self) -> usize {
                match self { $(Self::$name(it) => it.state_len(),)+ }
            }

            /// The rate of the quota; `None` for an algorithm without a period.
            pub fn rate(&self) -> Option<Rate> {
                match self { $(Self::$name(it) => Algorithm::rate(it),)+ }
            }

            /// The most that is granted at once.
            pub fn limit(&self) -> u64 {
                match self { $(Self::$name(it) => it.limit(),)+ }
            }

            /// The most that the quota admits in a window, in the worst case.
            pub fn bound(&self) -> Bound {
                match self { $(Self::$name(it) => it.bound(),)+ }
            }

            /// Decides a demand; see [`Algorithm::decide`].
            #[inline]
            pub fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult {
                match self { $(Self::$name(it) => it.decide(state, now, demand),)+ }
            }

            /// Refunds a charge; see [`Algorithm::refund`].
            pub fn refund<W: AlgorithmState + ?Sized>(
                &self, state: &mut W, now: Micros, receipt: Receipt, cost: u64,
            ) {
                match self { $(Self::$name(it) => it.refund(state, now, receipt, cost.min(receipt.cost)),)+ }
            }

            /// Whether this quota can read a state that `other` wrote: both use the same algorithm and, if it has
            /// windows, the same ones. See [`Algorithm::shares_state`].
            pub fn shares_state(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$name(it), Self::$name(other)) => it.shares_state(other),)+
                    _ => false,
                }
            }

            /// Converts a state that `writer` wrote to this quota; clears it if they share no state.
            pub fn convert_state<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
                match (self, writer) {
                    $((Self::$name(it), Self::$name(writer)) if it.shares_state(writer) => {
                        it.convert_state(writer, state, now);
                    })+
                    _ => (0..self.state_len()).for_each(|word| state.set(word, 0)),
                }
            }

            /// Decides a demand on a state that `writer` wrote. Both quotas must share their state; see
            /// [`Algorithm::decide_converted`].
            pub fn decide_converted<W: AlgorithmState + ?Sized>(
                &self, writer: &Self, state: &mut W, now: Micros, demand: Demand,
            ) -> ChargeResult {
                match (self, writer) {
                    $((Self::$name(it), Self::$name(writer)) => it.decide_converted(writer, state, now, demand),)+
                    _ => self.decide(state, now, demand),
                }
            }

            /// Extends the lease of a permit; see [`Algorithm::renew`].
            pub fn renew<W: AlgorithmState + ?Sized>(
                &self, state: &mut W, now: Micros, receipt: Receipt,
            ) -> Option<Receipt> {
                match self { $(Self::$name(it) => it.renew(state, now, receipt),)+ }
            }

            /// Starts a key at its first check; see [`Algorithm::begin`]. Both quotas must share their state, which
            /// `writer` wrote.
            pub fn begin<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) -> bool {
                if self != writer {
                    if self.retention() == Micros::ZERO || writer.forgotten_after(state, now) > Micros::ZERO {
                        return false;
                    }
                    (0..self.state_len()).for_each(|word| state.set(word, 0));
                }
                match self { $(Self::$name(it) => it.begin(state, now),)+ }
            }

            /// How long a state is stored after its reset; see [`Algorithm::retention`].
            pub fn retention(&self) -> Micros {
                match self { $(Self::$name(it) => it.retention(),)+ }
            }

            /// The time until a state is equivalent to that of an unused key; see [`Algorithm::forgotten_after`].
            pub fn forgotten_after<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) -> Micros {
                match self { $(Self::$name(it) => it.forgotten_after(state, now),)+ }
            }

            /// Writes the state of a limiter that is created at `now`.
            pub fn create<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros) {
                match self { $(Self::$name(it) => it.create(state, now),)+ }
            }
        }

        impl fmt::Display for AlgorithmKind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self { $(Self::$name(it) => fmt::Display::fmt(it, f),)+ }
            }
        }
    };
}

algorithm_registry! {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingStrict,
    SlidingLog,
    Smooth,
    WarmUp,
    Concurrency,
    Total,
    CalendarWindow,
}
