//! How a quota is counted: one file for each algorithm, one line for each in the registry below.
//!
//! Every algorithm is a pure function `state + now + demand → decision`, on words that a store lends it.

mod concurrency;
mod fixed_window;
mod leaky_bucket;
pub mod level;
mod shaper;
mod sliding_log;
mod sliding_strict;
mod sliding_window;
mod smooth;
mod token_bucket;
mod warm_up;
mod window;

pub use concurrency::Concurrency;
pub use fixed_window::{FixedWindow, WindowStart};
pub use leaky_bucket::LeakyBucket;
pub use sliding_log::SlidingLog;
pub use sliding_strict::SlidingStrict;
pub use sliding_window::SlidingWindow;
pub use smooth::Smooth;
pub use token_bucket::TokenBucket;
pub use warm_up::WarmUp;

use crate::{
    bound::Bound,
    decision::{CountReading, Decision, DecisionCode},
    quota::{QuotaError, QuotaReader, Rate},
    state::AlgorithmState,
    units::Micros,
};
use core::fmt;

/// What a caller asks of one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// How many tokens, permits or bytes. Zero asks nothing and charges nothing: it is a peek.
    pub cost: u64,
    /// The longest wait the caller accepts; zero means "now or not at all".
    pub max_wait: Micros,
    /// What to do with a cost that is larger than the quota ever grants at once.
    pub overdraft: Overdraft,
    /// Whether an allowed cost is charged.
    pub effect: Effect,
}

impl Demand {
    /// Charges `cost` now or not at all.
    #[inline]
    pub const fn new(cost: u64) -> Self {
        Self { cost, max_wait: Micros::ZERO, overdraft: Overdraft::Refuse, effect: Effect::Charge }
    }

    /// Charges `cost` and accepts to wait for it up to `patience`.
    pub const fn with_max_wait(cost: u64, max_wait: Micros) -> Self {
        Self { max_wait, ..Self::new(cost) }
    }

    /// Asks what `cost` would get, and charges nothing.
    pub const fn probe(cost: u64) -> Self {
        Self { effect: Effect::Probe, ..Self::new(cost) }
    }

    /// Charges `cost` whatever the state is: for work that has already been done.
    pub const fn forced(cost: u64) -> Self {
        Self { cost, max_wait: Micros::MAX, overdraft: Overdraft::Force, effect: Effect::Charge }
    }

    /// The same demand, where a cost over the burst is taken on credit: it is granted as soon as a full burst
    /// would be, and later callers wait until the rest is repaid.
    #[must_use]
    pub const fn with_overdraft(self) -> Self {
        Self { overdraft: Overdraft::Grant, ..self }
    }
}

/// What to do with a cost that is larger than the quota ever grants at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overdraft {
    /// Answer `Never`.
    Refuse,
    /// Grant it when a full burst would be granted, and repay the rest first.
    Grant,
    /// Charge it, whatever the state is and however long the queue.
    Force,
}

/// Whether a granted demand changes the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Charge it.
    Charge,
    /// Only tell what would happen.
    Probe,
}

/// A decision, and the receipt with which a charge can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeResult {
    /// The answer.
    pub decision: Decision,
    /// Proof of what was charged; it refunds nothing when nothing was.
    pub receipt: Receipt,
}

/// Proof of a charge. A refund gives back at most the part that time has not given back already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// What was charged, and has not been refunded yet.
    pub cost: u64,
    /// When the charge was counted.
    pub at: Micros,
    /// A mark of the algorithm's own.
    pub mark: u64,
    /// Another one.
    pub stored: u64,
}

/// Whether a key keeps what it used when its quota changes.
///
/// A state remembers which quota wrote it. Another quota that [shares its state](AlgorithmKind::shares_state) reads it as its own, and writes
/// only when it admits. A quota that does not has a state of its own beside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CarryOver {
    /// What was used stays used.
    #[default]
    Keep,
    /// The new quota starts with a state of its own: while both are in use, both bounds add up. Permits in flight stay held. Of more than
    /// nine quotas in use at a time, some share states.
    Reset,
}

/// The numbers of a quota as its twin in Lua wants them, in an order that the twin's file tells; the rest is zero.
pub type LuaArgs = [f64; 6];

/// What every algorithm can do. The methods that decide are pure: time is an argument.
pub trait Algorithm: Copy + fmt::Display {
    /// The names that select the algorithm in a quota, the canonical one first.
    const NAMES: &'static [&'static str];

    /// The twin in Lua: files to be run one after the other, of which the last defines the algorithm.
    const LUA_SOURCES: &'static [&'static str];

    /// What the twin needs to know of this quota.
    fn lua_args(&self) -> LuaArgs;

    /// The decision that the twin gave: a verb and three numbers. `None` for what no twin says.
    fn decode_reply(&self, [verb, remaining, reset, wait]: [u64; 4]) -> Option<Decision> {
        let (reset, wait) = (Micros::new(reset), Micros::new(wait));
        Some(Decision::from_count(
            DecisionCode::from_lua(verb)?,
            self.limit(),
            CountReading { remaining, reset, wait },
        ))
    }

    /// Reads the parameters that follow the name.
    fn parse(rate: Rate, reader: &mut QuotaReader<'_>) -> Result<Self, QuotaError>;

    /// Words of state per key.
    fn state_len(&self) -> usize;

    /// The rate it was declared with; `None` for one that has no period.
    fn rate(&self) -> Option<Rate>;

    /// The most that is granted at once.
    fn limit(&self) -> u64;

    /// The worst case that a backend must survive.
    fn bound(&self) -> Bound;

    /// Answers a demand at `now`; charges it if it is granted and says so in a receipt. A denial writes nothing.
    fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult;

    /// Gives back up to `cost` of what `receipt` proves, without ever creating a token.
    fn refund<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, receipt: Receipt, cost: u64);

    /// Whether a state that `other` wrote can be read by this quota.
    fn shares_state(&self, other: &Self) -> bool;

    /// Turns a state that `writer` wrote into one of this quota. Nothing to do where a state is the same under both.
    fn carry_over<W: AlgorithmState + ?Sized>(&self, _writer: &Self, _state: &mut W, _now: Micros) {}

    /// Answers a demand on a state that `writer` wrote. Only a charge writes, and what it writes is a state of this quota.
    fn decide_carried<W: AlgorithmState + ?Sized>(
        &self,
        _writer: &Self,
        state: &mut W,
        now: Micros,
        demand: Demand,
    ) -> ChargeResult {
        self.decide(state, now, demand)
    }

    /// Writes the state of a limiter that is created at `now`, where that differs from "never seen".
    fn create<W: AlgorithmState + ?Sized>(&self, _state: &mut W, _now: Micros) {}

    /// Holds what `receipt` proves for longer, where what is held expires; `None` when it has expired.
    fn renew<W: AlgorithmState + ?Sized>(
        &self,
        _state: &mut W,
        _now: Micros,
        receipt: Receipt,
    ) -> Option<Receipt> {
        Some(receipt)
    }
}

/// What the twins share: words, and exact arithmetic.
const PRELUDE_LUA: &str = include_str!("prelude.lua");
/// Exact products, for states that another quota wrote.
const CONVERT_LUA: &str = include_str!("convert.lua");

/// Makes the enum of all algorithms and its dispatch from one line for each.
macro_rules! algorithm_registry {
    ($($name:ident),+ $(,)?) => {
        /// Any of the algorithms, with the numbers of one quota.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum AlgorithmKind {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name($name),)+
        }

        impl AlgorithmKind {
            /// Reads the algorithm called `name` and its parameters; `None` when there is none of that name.
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

            /// Its place in [`AlgorithmKind::names`].
            pub fn index(&self) -> usize {
                enum Index { $($name),+ }
                match self { $(Self::$name(_) => Index::$name as usize,)+ }
            }

            /// The twins of all algorithms in Lua, in the order of [`AlgorithmKind::names`]; see [`Algorithm::LUA_SOURCES`].
            pub fn lua_sources() -> impl Iterator<Item = &'static [&'static str]> {
                [$($name::LUA_SOURCES),+].into_iter()
            }

            /// What the twin needs to know of this quota.
            pub fn lua_args(&self) -> LuaArgs {
                match self { $(Self::$name(it) => it.lua_args(),)+ }
            }

            /// The decision that the twin gave; see [`Algorithm::decode_reply`].
            pub fn decode_reply(&self, answer: [u64; 4]) -> Option<Decision> {
                match self { $(Self::$name(it) => it.decode_reply(answer),)+ }
            }

            /// Words of state per key.
            pub fn state_len(&self) -> usize {
                match self { $(Self::$name(it) => it.state_len(),)+ }
            }

            /// The rate it was declared with.
            pub fn rate(&self) -> Option<Rate> {
                match self { $(Self::$name(it) => Algorithm::rate(it),)+ }
            }

            /// The most that is granted at once.
            pub fn limit(&self) -> u64 {
                match self { $(Self::$name(it) => it.limit(),)+ }
            }

            /// The worst case that a backend must survive.
            pub fn bound(&self) -> Bound {
                match self { $(Self::$name(it) => it.bound(),)+ }
            }

            /// Answers a demand; see [`Algorithm::decide`].
            #[inline]
            pub fn decide<W: AlgorithmState + ?Sized>(&self, state: &mut W, now: Micros, demand: Demand) -> ChargeResult {
                match self { $(Self::$name(it) => it.decide(state, now, demand),)+ }
            }

            /// Gives back a charge; see [`Algorithm::refund`].
            pub fn refund<W: AlgorithmState + ?Sized>(
                &self, state: &mut W, now: Micros, receipt: Receipt, cost: u64,
            ) {
                match self { $(Self::$name(it) => it.refund(state, now, receipt, cost.min(receipt.cost)),)+ }
            }

            /// Whether a state that `other` wrote can be read by this quota: they use the same algorithm, and the same windows where
            /// there are windows. See [`Algorithm::shares_state`].
            pub fn shares_state(&self, other: &Self) -> bool {
                match (self, other) {
                    $((Self::$name(it), Self::$name(other)) => it.shares_state(other),)+
                    _ => false,
                }
            }

            /// Turns a state that `writer` wrote into one of this quota; into a new one where they share no state.
            pub fn carry_over<W: AlgorithmState + ?Sized>(&self, writer: &Self, state: &mut W, now: Micros) {
                match (self, writer) {
                    $((Self::$name(it), Self::$name(writer)) if it.shares_state(writer) => {
                        it.carry_over(writer, state, now);
                    })+
                    _ => (0..self.state_len()).for_each(|word| state.set(word, 0)),
                }
            }

            /// Answers a demand on a state that `writer` wrote, with which this quota must share its state; see
            /// [`Algorithm::decide_carried`].
            pub fn decide_carried<W: AlgorithmState + ?Sized>(
                &self, writer: &Self, state: &mut W, now: Micros, demand: Demand,
            ) -> ChargeResult {
                match (self, writer) {
                    $((Self::$name(it), Self::$name(writer)) => it.decide_carried(writer, state, now, demand),)+
                    _ => self.decide(state, now, demand),
                }
            }

            /// Holds for longer what expires; see [`Algorithm::renew`].
            pub fn renew<W: AlgorithmState + ?Sized>(
                &self, state: &mut W, now: Micros, receipt: Receipt,
            ) -> Option<Receipt> {
                match self { $(Self::$name(it) => it.renew(state, now, receipt),)+ }
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
}
