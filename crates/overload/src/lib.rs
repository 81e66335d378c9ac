//! Protection from overload: adaptive limits, circuit breakers, priorities, error rates, load and features.
//!
//! Each part is a state machine that is given the time and the outcomes of calls, and a type around it that threads share.
//!
//! | noun | is |
//! |---|---|
//! | [`AdaptiveLimit`] | a limit on calls in flight, found by a controller of [`adaptive`] |
//! | [`PriorityLimit`] | a limit on calls in flight that classes share, by [`priority`] |
//! | [`Breaker`] | rejects calls to a backend that fails; its state machine is in [`breaker`] |
//! | [`ClientThrottle`], [`ErrorThrottle`] | admit fewer calls to a backend that fails; see [`error_rate`] |
//! | [`CallGuard`] | what most of these have in common: a [`CallPermit`] per call, and a report of its end |
//! | [`LoadMonitor`] | measures the load of the machine off the request path |
//! | [`ScaledLimit`] | a limit that follows the load and a [`Schedule`] |
//! | [`Features`] | features that are turned off by hand or by load |
//! | [`CallError`] | why a call was rejected, for its fallback |

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
pub use features::{Feature, FeatureConfig, FeatureOverride, FeatureSet, Features};
pub use load::{
    Ewma, LoadGauge, LoadLevel, LoadLevels, LoadMonitor, ScalePolicy, ScaledLimit, Scaler, Schedule,
    ScheduleError,
};
pub use priority::{PriorityLimit, PriorityLimitBuilder};
pub use rejection::Rejection;
pub use rolling::RollingWindow;
