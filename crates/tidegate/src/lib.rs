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
//! | [`Throttle`] | one quota without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, hold |
//! | [`Decision`] | the answer: allowed, granted after a delay, or denied; with what is left and when to retry |
//! | [`Reservation`], [`Permit`] | tokens to be settled later; a slot that gives itself back |
//! | [`Store`], [`Outage`] | where a fleet counts; what is decided while it is unavailable |
//! | [`Rule`], [`Rules`] | a limit with a name that a policy file can change; all rules of a program |
//! | [`Gate`], [`Verdict`] | rules for requests, asked together; what they decided |
//! | [`Limited`], [`Cause`] | the error of a call that was refused, and why |
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
pub use tidegate_core::{Decision, Outcome, Quota, Report};
#[cfg(feature = "tokio")]
pub use tidegate_engine::Outage;
pub use tidegate_engine::{
    Bucket, BuildError, Capacity, Cause, Clock, Joined, Limiter, Permit, Priority, Reservation, Store,
    Throttle, Waiter,
};
#[cfg(feature = "macros")]
pub use tidegate_macros::{breaker, concurrency, limit};
#[cfg(feature = "tokio")]
pub use tidegate_rule::{Declaration, Gate, Limited, RequestLimit, Rule, Rules, Verdict};

/// Quotas, algorithms and decisions, without a clock.
pub use tidegate_core as core;

/// What limiters take and return.
pub mod limiter {
    #[cfg(feature = "tokio")]
    pub use tidegate_engine::{Ahead, Outage, decide_all, reserve_all};
    pub use tidegate_engine::{
        Blocking, BlockingBucket, Bucket, BuildError, Capacity, Check, Claim, Clock, ClockHand, DeniedKey,
        FleetBound, Joined, Key, Limiter, LimiterBuilder, Mark, OutageBound, Overflow, Permit, Priority,
        Refused, Reservation, Settlement, Stats, Store, StoreError, TableSize, Throttle, ThrottleBuilder,
        Waiter, store,
    };
}

/// Against overload: [`Slots`](overload::Slots) bound what is in flight, an [`AdaptiveLimit`](overload::AdaptiveLimit) finds how much
/// that may be, and a [`PriorityLimit`](overload::PriorityLimit) gives it to the important first. A [`Breaker`](overload::Breaker)
/// keeps calls from what fails; a [`ClientThrottle`](overload::ClientThrottle) and an [`ErrorThrottle`](overload::ErrorThrottle) let fewer
/// of them through. Each is a [`Guard`](overload::Guard): it gives a [`Pass`](overload::Pass) and wants to know how the call ended. A
/// [`LoadMonitor`](overload::LoadMonitor) watches the machine, limits and features follow it ([`Scaled`](overload::Scaled),
/// [`Switchboard`](overload::Switchboard)), and [`fallback`](overload::fallback) answers in place of what was refused.
pub mod overload {
    pub use tidegate_core::{
        Average, BreakerBuilder, BreakerSettings, BreakerSnapshot, BreakerState, CallCounts,
        ClientThrottleBuilder, ClientThrottleSettings, ErrorRateBuilder, ErrorRateSettings, Lever, LoadGauge,
        LoadLevel, LoadLevels, Rejection, Report, Scale, Scaler, Schedule, ScheduleError, Switch, adaptive,
        triage,
    };
    pub use tidegate_engine::{
        AdaptiveEntry, AdaptiveLimit, Breaker, BreakerEntry, Cause, ClientThrottle, ClientThrottleEntry,
        ErrorThrottle, Feature, Guard, LoadMonitor, Pass, PriorityLimit, PriorityLimitBuilder, Scaled,
        Settle, Slot, Slots, SlotsBuilder, Switchboard, fallback, load,
    };
}

/// Lists of who is denied, and bans.
pub mod access {
    pub use tidegate_engine::{
        Access, AccessControl, AccessList, AccessListBuilder, BanOutcome, BanRule, BanStats, BannedKey, Bans,
        BansBuilder, ListError, ListProblem, Prefix, Stance, Standing,
    };
}

/// Byte rates of readers, writers, streams and bodies; paced streams.
#[cfg(feature = "tokio")]
pub mod bandwidth {
    pub use tidegate_engine::{Bandwidth, BandwidthBuilder, Bandwidths, Shaped};
    #[cfg(feature = "stream")]
    pub use tidegate_engine::{ByteLen, InFlight, Pace, PaceExt, PaceSlot, Paced};
}

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
struct FromSpring;

/// The examples of the attributes, which are documented where they are defined.
#[cfg(all(doctest, feature = "macros"))]
mod attributes {
    #[doc = include_str!("../../macros/docs/limit.md")]
    struct Limit;
    #[doc = include_str!("../../macros/docs/concurrency.md")]
    struct Concurrency;
    #[doc = include_str!("../../macros/docs/breaker.md")]
    struct Breaker;
}
