//! How frameworks send refusals and answers. Each is a feature, and the only place where its types are known.

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
    //! Refusals to be sent.

    use crate::Limited;
    use tidegate_core::{Decision, Micros, Quota};
    use tidegate_overload::{CallError, Rejection};

    /// By a quota, for two and a half seconds.
    pub(super) fn rate_limited() -> Limited {
        let denied = Decision::deny(5, Micros::from_millis(2_500));
        Limited::new("login", CallError::Limited(denied))
            .with_quota(Quota::per_minute(5).quota().ok())
            .with_message(Some("Slow down, \"friend\".".into()))
    }

    /// By nobody: the store is away.
    pub(super) fn store_unavailable() -> Limited {
        Limited::new("login", CallError::from_denial(Decision::fail_closed(5, Micros::from_secs(1))))
            .with_quota(Quota::per_minute(5).quota().ok())
    }

    /// By a breaker, for four seconds.
    pub(super) fn breaker_open() -> Limited {
        Limited::new("payments", CallError::Rejected(Rejection::Open(Micros::from_secs(4))))
    }
}
