//! The decision core of Tidegate: quotas, algorithms and decisions.
//!
//! ```text
//!   state + now + demand  ──decide──▶  decision  (+ next state, or nothing to write)
//! ```
//!
//! Everything here is pure. Nothing waits, nothing reads a clock, nothing allocates on the way to a decision,
//! and nothing depends on anything. The same functions run in memory, in tests and, as their Lua twins, in Redis.
//!
//! ```
//! use tidegate_core::{Demand, Micros, Quota};
//!
//! let quota: Quota = "10/s burst 3".parse()?;
//! let mut words = [0; 2];
//! let step = quota.decide(words.as_mut_slice(), Micros::ZERO, Demand::new(2));
//! assert!(step.decision.is_allowed());
//! assert_eq!(step.decision.remaining(), 1);
//! # Ok::<(), tidegate_core::QuotaError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Quota`] | how much, and how it is counted |
//! | [`Algorithm`] | how it is counted; one file each |
//! | [`Demand`] | what a caller asks: cost, patience, credit |
//! | [`Decision`] | one answer: allow, delay or deny, and its numbers |
//! | [`Receipt`] | proof of a charge, with which it can be given back |
//! | [`Bound`] | the worst case that a quota lets through |
//! | [`header`] | what HTTP headers say of quotas |
//! | [`suggest`] | what a mistyped word was meant to be |
//!
//! It does not store, wait or talk to anyone: that is what `tidegate-limiter` is for.

#![no_std]

extern crate alloc;

pub mod algorithm;
mod bound;
mod decision;
mod entries;
mod fnv;
pub mod header;
mod math;
mod percent;
mod quota;
mod ratio;
mod setting;
#[doc(hidden)]
pub mod span;
mod state;
pub mod suggest;
mod units;
mod utc;

pub use algorithm::{Algorithm, AlgorithmKind, CarryOver, ChargeResult, Demand, Effect, Overdraft, Receipt};
pub use bound::Bound;
pub use decision::{Decision, Outcome, Retry};
pub use entries::{StateEntries, StateEntry};
pub use fnv::Fnv;
pub use percent::Percent;
pub use quota::{Quota, QuotaError, QuotaReader, Rate, RateUnit};
pub use ratio::Ratio;
pub use setting::SettingError;
pub use state::{AlgorithmState, OffsetState};
pub use units::{LARGEST_EXACT, Micros, Rounded};
pub use utc::Utc;
