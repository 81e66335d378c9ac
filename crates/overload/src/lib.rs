//! Overload protection: adaptive limits, circuit breakers, priorities, error rates, retries, load and feature flags.
//!
//! Each mechanism is a state machine that takes the time and the outcomes of calls as arguments, and a thread-safe type
//! around it.
//!
//! ```
//! use tidegate_overload::{Breaker, BreakerSettings, CallError, CallGuard};
//!
//! // Opens when half of the last 10 calls failed.
//! let breaker = Breaker::new(BreakerSettings::builder().count_window(10).build()?);
//! match breaker.call(|| "42".parse::<u8>()) {
//!     Ok(value) => assert_eq!(value, 42),
//!     Err(CallError::GuardRejected(rejection)) => println!("not called: {rejection}"),
//!     Err(error) => println!("call failed: {error}"),
//! }
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`AdaptiveLimit`] | a concurrency limit that a controller of [`adaptive`] adjusts |
//! | [`PriorityLimit`] | a concurrency limit shared by classes of different [`priority`] |
//! | [`Breaker`] | a circuit breaker; its state machine is in [`breaker`] |
//! | [`ClientThrottle`], [`ErrorThrottle`] | admit fewer calls to a failing backend; see [`error_rate`] |
//! | [`CallGuard`] | the common trait: a [`CallPermit`] per call, which records the outcome |
//! | [`Retrier`] | retries calls within a [`RetryBudget`], bounds their time, and hedges slow ones; see [`retry`] |
//! | [`LoadMonitor`] | measures the load of the machine off the request path |
//! | [`ScaledLimit`] | a limit that follows the load and a [`Schedule`] |
//! | [`Features`] | feature flags, disabled manually or by load |
//! | [`CallError`] | why a call has no result, as input for its fallback |
//!
//! It does not
//!
//! - queue calls, except for `AdaptiveLimit::acquire`, which waits for a slot;
//! - share state between processes;
//! - decide which outcomes are failures: the caller does.

pub mod adaptive;
pub mod breaker;
mod call_guard;
mod call_outcome;
pub mod error_rate;
pub mod fallback;
mod features;
pub mod load;
pub mod priority;
mod rejection;
pub mod retry;
mod rolling;

pub use adaptive::{AdaptiveEntry, AdaptiveLimit};
pub use breaker::{
    Breaker, BreakerBuilder, BreakerEntry, BreakerSettings, BreakerSnapshot, BreakerState, CallCounts,
};
pub use call_guard::{CallGuard, CallPermit, RecordOutcome};
pub use call_outcome::CallOutcome;
pub use error_rate::{
    ClientThrottle, ClientThrottleBuilder, ClientThrottleEntry, ClientThrottleSettings, ErrorRateBuilder,
    ErrorRateSettings, ErrorThrottle,
};
pub use fallback::CallError;
pub use features::{
    Feature, FeatureConfig, FeatureOffCause, FeatureOverride, FeatureSet, FeatureStatus, Features,
};
pub use load::{
    Ewma, LoadGauge, LoadLevel, LoadLevels, LoadMonitor, ScalePolicy, ScaledLimit, Scaler, Schedule,
    ScheduleError,
};
pub use priority::{PriorityLimit, PriorityLimitBuilder};
pub use rejection::Rejection;
pub use retry::{HedgeDelay, Retrier, RetryAction, RetryBudget, RetryBuilder, RetryCounts};
pub use rolling::RollingWindow;
