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
//! A [`SharedLimiter`] counts in memory or, with the feature `redis`, in a store that a fleet shares: the same
//! declaration, the same decisions.
//!
//! A [`Breaker`] keeps calls from what fails; a [`ClientThrottle`] and an [`ErrorThrottle`] let fewer of them through.
//! Each is a [`Guard`]: it gives a [`Pass`] and wants to know how the call ended.
//!
//! It does not speak any wire: middleware and gateways build on it.

pub use tidegate_core::{
    Bound, BreakerBuilder, BreakerSettings, BreakerSnapshot, BreakerState, CallCounts, ClientThrottleBuilder,
    ClientThrottleSettings, Credit, Decision, Demand, ErrorRateBuilder, ErrorRateSettings, Inherit, Kind,
    Micros, Outcome, Quota, QuotaError, Rate, Rejection, Report, Retry, SettingError, Share, Unit,
    Average, Bound, Credit, Decision, Demand, Inherit, Kind, Lever, LoadGauge, LoadLevel, LoadLevels, Micros,
    Outcome, Quota, QuotaError, Rate, Ratio, Retry, Scale, Scaler, Schedule, ScheduleError, SettingError,
    Share, Switch, Unit,
};
#[cfg(feature = "tokio")]
pub use tidegate_engine::{
    Ahead, Outage, SharedAsk, SharedLimiter, SharedLimiterBuilder, SharedPermit, SharedReservation,
    SharedTier, decide_all_shared,
};
pub use tidegate_engine::{
    Ask, Breaker, BreakerEntry, Bucket, BuildError, CallError, Capacity, ClientThrottle, ClientThrottleEntry,
    Clock, ClockHand, DeniedKey, ErrorThrottle, Guard, Key, Limiter, LimiterBuilder, Overflow, Pass, Permit,
    Priority, Refused, Reservation, Stats, Store, StoreError, Throttle, ThrottleBuilder, Waiter, decide_all,
    store,
    Ask, Bucket, BuildError, Capacity, Cause, Clock, ClockHand, DeniedKey, Feature, Key, Limiter,
    LimiterBuilder, LoadMonitor, Overflow, Permit, Priority, Refused, Reservation, Scaled, Stats, Store,
    StoreError, Switchboard, Throttle, ThrottleBuilder, Waiter, decide_all, fallback, load, store,
};

/// State in Redis or Valkey.
#[cfg(feature = "redis")]
pub use tidegate_redis as redis;

/// The README's code, run as tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
