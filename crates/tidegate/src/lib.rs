//! Rate limiting, concurrency limits and overload control for Rust.
//!
//! ```
//! use tidegate::Limiter;
//!
//! let limiter = Limiter::new("100/min burst 20")?;
//! let decision = limiter.check("203.0.113.7");
//! if decision.is_allowed() {
//!     println!("allowed, {} remaining", decision.remaining());
//! } else {
//!     println!("denied, retry after {:?}", decision.retry_after());
//! }
//! # Ok::<(), tidegate::BuildError>(())
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | [`Quota`] | a limit: `100/min burst 20`, `5 at once`, `10/s sliding-window` |
//! | [`Limiter`] | one or more quotas for many keys, in memory or in a shared store |
//! | [`DirectLimiter`] | one quota without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, acquire |
//! | [`Decision`] | allowed, delayed or denied, with the remaining quota and the retry time |
//! | [`Reservation`], [`Permit`] | tokens that are settled later; a slot that is released on drop |
//! | [`Store`], [`FailureMode`] | shared counters; the behaviour while the store is unavailable |
//! | [`Rule`], [`Rules`] | a named limit that a policy file can change; all rules of a program |
//! | [`Gate`], [`Verdict`] | rules for requests that are checked together; their decisions |
//! | [`Limited`], [`CallError`] | the error of a rejected call, and its reason |
//!
//! | module | content |
//! |---|---|
//! | [`core`] | quotas, algorithms and decisions, without a clock |
//! | [`limiter`] | limiters, stores, waiting, reservations, permits |
//! | [`overload`] | adaptive limits, priorities, circuit breakers, throttles, retries, features, fallbacks |
//! | [`access`] | access lists and bans |
//! | `bandwidth` | bandwidth limits of readers, writers, streams and bodies |
//! | `rule` | named limits for functions and requests |
//! | `policy`, `tower`, `actix`, `redis` | with the feature of that name: policy files, layers, middleware, the store in Redis or Valkey |
//!
//! The attributes `limit`, `concurrency`, `breaker`, `retry` and `time_limit` (feature `macros`) protect functions, and layers
//! protect services.
//! Both declare rules with names. With the feature `policy`, `init` applies a policy file to all of them: other quotas,
//! modes and stores than those in code, without a build. The same file works in the gateway and in the decision
//! service.
//!
//! It does not authenticate clients, cache responses, or store state on disk.

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
pub use tidegate_macros::{breaker, concurrency, limit, retry, time_limit};
pub use tidegate_overload::{CallError, CallOutcome};
#[cfg(feature = "tokio")]
pub use tidegate_rule::{Gate, Limited, RequestLimit, Rule, RuleConfig, Rules, Verdict};

/// Quotas, algorithms and decisions, without a clock.
pub use tidegate_core as core;

/// Limiters: keys in memory or in a store, waiting, reservations, permits.
pub use tidegate_limiter as limiter;

/// Adaptive limits, priorities, breakers, error rates, retries, load, features, fallbacks.
pub use tidegate_overload as overload;

/// Deny and allow lists, and bans.
pub use tidegate_access as access;

/// Bandwidth limits of readers, writers, streams and bodies; rate-limited streams.
#[cfg(feature = "tokio")]
pub use tidegate_bandwidth as bandwidth;

/// Named limits for functions and requests.
#[cfg(feature = "tokio")]
pub use tidegate_rule as rule;

/// Verified tokens and API keys, as keys of rules.
#[cfg(feature = "identity")]
pub use tidegate_identity as identity;

/// Middleware for actix-web.
#[cfg(feature = "actix")]
pub use tidegate_actix as actix;
/// Policy files: all rules of a program in one file. With the feature `tower`, `tower::PolicyLayer` applies them to a
/// service.
#[cfg(feature = "policy")]
pub mod policy {
    pub use crate::init::{PolicyStatus, features, policy_status, reload};
    pub use tidegate_policy::*;
}
/// Layers for tower: axum, hyper, tonic, reqwest.
#[cfg(feature = "tower")]
pub use tidegate_tower as tower;

/// State in Redis or Valkey.
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;

/// Runs the code of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the code of the chapter about the library as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/library.md")]
struct LibraryChapter;

/// Runs the code of the chapter about overload as tests.
#[cfg(all(doctest, feature = "tokio"))]
#[doc = include_str!("../../../docs/overload.md")]
struct OverloadChapter;

/// Runs the code of the guide for Spring users as tests.
#[cfg(all(doctest, feature = "policy"))]
#[doc = include_str!("../../../docs/from-spring.md")]
struct SpringGuide;

/// Runs the code of the guide for users of governor as tests.
#[cfg(all(doctest, feature = "axum", feature = "policy", feature = "stream"))]
#[doc = include_str!("../../../docs/from-governor.md")]
struct GovernorGuide;

/// Runs the examples in the documentation of the attributes as tests.
#[cfg(all(doctest, feature = "macros"))]
mod attributes {
    #[doc = include_str!("../../macros/docs/limit.md")]
    struct LimitExamples;
    #[doc = include_str!("../../macros/docs/concurrency.md")]
    struct ConcurrencyExamples;
    #[doc = include_str!("../../macros/docs/breaker.md")]
    struct BreakerExamples;
    #[doc = include_str!("../../macros/docs/retry.md")]
    struct RetryExamples;
    #[doc = include_str!("../../macros/docs/time_limit.md")]
    struct TimeLimitExamples;
}
