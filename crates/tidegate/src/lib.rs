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
//! | noun | is |
//! |---|---|
//! | [`Quota`] | what is declared: `100/min burst 20`, `5 at once`, `10/s sliding-window` |
//! | [`Limiter`] | one quota or several for many keys, in memory or in a store that a fleet shares |
//! | [`DirectLimiter`] | one quota without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, hold |
//! | [`Decision`] | the answer: allowed, granted after a delay, or denied; with what is left and when to retry |
//! | [`Reservation`], [`Permit`] | tokens to be settled later; a slot that gives itself back |
//! | [`Store`], [`FailureMode`] | where a fleet counts; what is decided while it is unavailable |
//! | [`Rule`], [`Rules`] | a limit with a name that a policy file can change; all rules of a program |
//! | [`Gate`], [`Verdict`] | rules for requests, asked together; what they decided |
//! | [`Limited`], [`CallError`] | the error of a call that was refused, and why |
//!
//! | module | holds |
//! |---|---|
//! | [`core`] | quotas, algorithms and decisions, without a clock |
//! | [`limiter`] | what else limiters take and return |
//! | [`overload`] | limits in flight, adaptive limits, priorities, breakers, load, features, fallbacks |
//! | [`access`] | lists of who is denied, and bans |
//! | `bandwidth` | byte rates of readers, writers, streams and bodies; paced streams |
//! | `rule` | limits with names, requests and answers |
//! | `policy`, `tower`, `actix`, `redis` | with the feature of that name: policy files, layers, middleware, the store in Redis or Valkey |
//!
//! The attributes `limit`, `concurrency` and `breaker` (feature `macros`) limit functions, and layers limit services. Both declare
//! rules with names. With the feature `policy`, `init` applies a policy file to all of them: other quotas, modes and stores than
//! those in code, without a build. The same file works in the gateway and in the decision service.
//!
//! It does not authenticate anybody, it does not cache, and it keeps no state on disk.

#[cfg(feature = "tokio")]
mod init;

#[cfg(feature = "policy")]
pub use init::init;
#[cfg(feature = "tokio")]
pub use init::rules;
#[doc(hidden)]
#[cfg(feature = "tokio")]
pub use init::site;
pub use tidegate_core::{Decision, Outcome, Quota};
#[cfg(feature = "tokio")]
pub use tidegate_limiter::FailureMode;
pub use tidegate_limiter::{
    Bucket, BuildError, Capacity, Clock, DirectLimiter, KeyPair, Limiter, Permit, Reservation, Store,
    WaitPriority, Waiter,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::{breaker, concurrency, limit};
pub use tidegate_overload::{CallError, CallOutcome};
#[cfg(feature = "tokio")]
pub use tidegate_rule::{Gate, Limited, RequestLimit, Rule, RuleConfig, Rules, Verdict};

/// Quotas, algorithms and decisions, without a clock.
pub use tidegate_core as core;

/// Limiters: keys in memory or in a store, waiting, reservations, permits.
pub use tidegate_limiter as limiter;

/// Adaptive limits, priorities, breakers, error rates, load, features, fallbacks.
pub use tidegate_overload as overload;

/// Deny and allow lists, and bans.
pub use tidegate_access as access;

/// Byte rates of readers, writers, streams and bodies; paced streams.
#[cfg(feature = "tokio")]
pub use tidegate_bandwidth as bandwidth;

/// Limits with names, requests and answers.
#[cfg(feature = "tokio")]
pub use tidegate_rule as rule;

/// Middleware for actix-web.
#[cfg(feature = "actix")]
pub use tidegate_actix as actix;
/// Policy files: all rules of a program in one file. With the feature `tower`, `tower::PolicyLayer` puts them in front of a
/// service.
#[cfg(feature = "policy")]
pub mod policy {
    pub use crate::init::{PolicyStatus, policy_status, reload};
    pub use tidegate_policy::*;
}
/// Layers for tower: axum, hyper, tonic, reqwest.
#[cfg(feature = "tower")]
pub use tidegate_tower as tower;

/// State in Redis or Valkey.
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;

/// The README's code, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// The code of the guide for those who come from Spring, run as tests.
#[cfg(all(doctest, feature = "policy"))]
#[doc = include_str!("../../../docs/from-spring.md")]
struct SpringGuide;

/// The examples of the attributes, which are documented where they are defined.
#[cfg(all(doctest, feature = "macros"))]
mod attributes {
    #[doc = include_str!("../../macros/docs/limit.md")]
    struct LimitExamples;
    #[doc = include_str!("../../macros/docs/concurrency.md")]
    struct ConcurrencyExamples;
    #[doc = include_str!("../../macros/docs/breaker.md")]
    struct BreakerExamples;
}
