//! Traffic control for Rust: how much, for whom, and what happens to the rest.
//!
//! ```
//! use tidegate::Limiter;
//!
//! let limiter = Limiter::new("100/min burst 20")?;
//! let decision = limiter.check("203.0.113.7");
//! if decision.is_allowed() {
//!     println!("go on, {} left", decision.remaining());
//! } else {
//!     println!("come back in {:?}", decision.retry_after());
//! }
//! # Ok::<(), tidegate::BuildError>(())
//! ```
//!
//! Start with [`Limiter`] for many keys or [`Throttle`] for none, and with [`Quota`] for what can be declared.
//!
//! It does not speak any wire: middleware, gateways and shared stores build on it.

pub use tidegate_core::{
    Bound, Credit, Decision, Demand, Inherit, Kind, Micros, Outcome, Quota, QuotaError, Rate, Retry, Unit,
};
pub use tidegate_engine::{
    Ask, Bucket, BuildError, Capacity, Clock, ClockHand, DeniedKey, Key, Limiter, LimiterBuilder, Overflow,
    Permit, Priority, Refused, Reservation, Stats, Throttle, ThrottleBuilder, Waiter, decide_all,
};

/// The README's code, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
