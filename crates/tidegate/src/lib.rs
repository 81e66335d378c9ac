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
//! A [`Limiter`] counts in memory or, with the feature `redis`, in a store that a fleet shares: the same declaration, the same
//! decisions.
//!
//! Against overload: [`Slots`] bound what is in flight, an [`AdaptiveLimit`] finds how much that may be, and a
//! [`PriorityLimit`] gives it to the important first. A [`Breaker`] keeps calls from what fails; a [`ClientThrottle`] and an
//! [`ErrorThrottle`] let fewer of them through. Each is a [`Guard`]: it gives a [`Pass`] and wants to know how the call
//! ended. A [`LoadMonitor`] watches the machine, limits and features follow it ([`Scaled`], [`Switchboard`]), and
//! [`fallback`] answers in place of what was refused.
//! A `Bandwidth` limits the bytes of readers and writers and, with the features `stream` and `http-body`, of streams and
//! bodies. With the feature `stream`, a `Pace` slows down whatever is pulled from a stream.
//!
//! Where the code is: the attributes `limit`, `concurrency` and `breaker` (feature `macros`). In front of a service: layers for
//! `tower` (features `tower`, `axum`, `tonic`, `reqwest`) and middleware for `actix`. Both declare rules with names. With the
//! feature `policy`, `init` applies a policy file to all of them: other quotas, modes and stores than those in code, without a
//! build. `tower::LimitLayer::from_policy` puts all rules of the file in front of a service, and the same file works in the
//! gateway and in the decision service.

#[cfg(feature = "tokio")]
mod init;

#[cfg(feature = "policy")]
pub use init::{PolicyStatus, init, policy_status, reload};
#[cfg(feature = "tokio")]
pub use init::{rules, site};
pub use tidegate_core::{
    Average, Bound, BreakerBuilder, BreakerSettings, BreakerSnapshot, BreakerState, CallCounts, CarryOver,
    ClientThrottleBuilder, ClientThrottleSettings, Credit, Decision, Demand, ErrorRateBuilder,
    ErrorRateSettings, Kind, Lever, LoadGauge, LoadLevel, LoadLevels, Micros, Outcome, Quota, QuotaError,
    Rate, Ratio, Rejection, Report, Retry, Scale, Scaler, Schedule, ScheduleError, SettingError, Share,
    Switch, Unit, adaptive, triage,
};
pub use tidegate_engine::{
    Access, AccessControl, AccessList, AccessListBuilder, AdaptiveEntry, AdaptiveLimit, BanOutcome, BanRule,
    BanStats, BannedKey, Bans, BansBuilder, Blocking, BlockingBucket, Breaker, BreakerEntry, Bucket,
    BuildError, Capacity, Cause, Check, Claim, ClientThrottle, ClientThrottleEntry, Clock, ClockHand,
    DeniedKey, ErrorThrottle, Feature, FleetBound, Guard, Joined, Key, Limiter, LimiterBuilder, ListError,
    ListProblem, LoadMonitor, Mark, OutageBound, Overflow, Pass, Permit, Prefix, Priority, PriorityLimit,
    PriorityLimitBuilder, Refused, Reservation, Scaled, Settle, Settlement, Slot, Slots, SlotsBuilder,
    Stance, Standing, Stats, Store, StoreError, Switchboard, TableSize, Throttle, ThrottleBuilder, Waiter,
    fallback, load, store,
};
#[cfg(feature = "tokio")]
pub use tidegate_engine::{
    Ahead, Bandwidth, BandwidthBuilder, Bandwidths, Outage, Shaped, decide_all, reserve_all,
};
#[cfg(feature = "stream")]
pub use tidegate_engine::{ByteLen, InFlight, Pace, PaceExt, PaceSlot, Paced};

#[cfg(feature = "macros")]
pub use tidegate_macros::*;
#[cfg(feature = "tokio")]
pub use tidegate_rule::{
    Answer, Charge, Declaration, Facts, Fields, FromLimited, Gate, Hold, Limited, Mode, RequestLimit, Rule,
    RuleKey, RuleSettings, Rules, Settings, SettingsError, StoreAddress, Verdict, request,
};

/// Middleware for actix-web.
#[cfg(feature = "actix")]
pub use tidegate_actix as actix;
/// Policy files: all rules of a program in one file. With the feature `tower`, `tower::PolicyLayer` puts them in front of a
/// service.
#[cfg(feature = "policy")]
pub use tidegate_policy as policy;
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
