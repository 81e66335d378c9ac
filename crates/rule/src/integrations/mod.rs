//! Conversions of rejections into framework types. Each is a feature, and the only module that uses its
//! types.

#[cfg(feature = "actix")]
mod actix;
#[cfg(feature = "axum")]
mod axum;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "tonic")]
mod tonic;

#[cfg(all(test, any(feature = "actix", feature = "http", feature = "tonic")))]
mod fixtures {
    //! Rejections for tests.

    use crate::Limited;
    use tidegate_core::{Decision, Micros, Quota};
    use tidegate_overload::{CallError, Rejection};

    /// Limited by a quota, for two and a half seconds.
    pub(super) fn rate_limited() -> Limited {
        let denied = Decision::deny(5, Micros::from_millis(2_500));
        Limited::new("login", CallError::Limited(denied))
            .with_quota(Quota::per_minute(5).quota().ok())
            .with_message(Some("Slow down, \"friend\".".into()))
    }

    /// Denied because the store is unavailable.
    pub(super) fn store_unavailable() -> Limited {
        Limited::new("login", CallError::from_denial(Decision::fail_closed(5, Micros::from_secs(1))))
            .with_quota(Quota::per_minute(5).quota().ok())
    }

    /// Cancelled after a second.
    pub(super) fn time_limit_exceeded() -> Limited {
        Limited::new("search", CallError::TimeLimitExceeded(Micros::from_secs(1)))
    }

    /// Rejected by a breaker, for four seconds.
    pub(super) fn breaker_open() -> Limited {
        Limited::new("payments", CallError::GuardRejected(Rejection::Open(Micros::from_secs(4))))
    }
}
