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
mod cast {
    //! Refusals to be sent.

    use crate::Limited;
    use tidegate_core::{Decision, Micros, Quota};
    use tidegate_overload::{Cause, Rejection};

    /// By a quota, for two and a half seconds.
    pub(super) fn over_the_limit() -> Limited {
        let denied = Decision::deny(5, Micros::from_millis(2_500));
        Limited::new("login", Cause::Limited(denied))
            .with_quota(Quota::per_minute(5).quota().ok())
            .with_message(Some("Slow down, \"friend\".".into()))
    }

    /// By nobody: the store is away.
    pub(super) fn closed() -> Limited {
        Limited::new("login", Cause::of_denial(Decision::fail_closed(5, Micros::from_secs(1))))
            .with_quota(Quota::per_minute(5).quota().ok())
    }

    /// By a breaker, for four seconds.
    pub(super) fn broken() -> Limited {
        Limited::new("payments", Cause::Rejected(Rejection::Open(Micros::from_secs(4))))
    }
}
