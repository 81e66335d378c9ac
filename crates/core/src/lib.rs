//! Rate limit quotas, algorithms and decisions, as pure functions.
//!
//! ```text
//!   state + now + demand  ──decide──▶  decision  (+ next state, or nothing to write)
//! ```
//!
//! No function waits, reads a clock or allocates while it decides. The dependencies are `jiff` with
//! its time zones, and `once_cell`. The in-memory store and the tests run these functions; Redis runs a Lua port of each
//! algorithm.
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
//! | noun | meaning |
//! |---|---|
//! | [`Quota`] | a limit and the algorithm that counts it |
//! | [`Algorithm`] | a way to count; one file each |
//! | [`Demand`] | one check: cost, maximum wait, overdraft, effect |
//! | [`Decision`] | the result: allow, delay or deny, with its numbers |
//! | [`Receipt`] | a record of a charge, required for a refund |
//! | [`Bound`] | the most that a quota admits in a time window |
//! | [`header`] | the HTTP rate limit headers |
//! | [`suggest`] | the closest known word for a mistyped one |
//!
//! It does not
//!
//! - store state, wait or do I/O: `tidegate-limiter` does;
//! - read requests: keys and rules belong to `tidegate-rule`.

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
mod time_zone;
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
pub use time_zone::{CalendarPeriod, CalendarSpan, TimeZone};
pub use units::{LARGEST_EXACT, Micros, Rounded};
pub use utc::Utc;
