//! What a surface says to whoever it does not let in, and how it judges the answers of those whom it does.

use super::classify::{InFlightEnd, classify_server};
use crate::{Limited, RejectionResponse, request::ResponseHead};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_overload::{CallError, CallOutcome};

/// What a surface says to whoever it does not let in, and how it judges the answers of those whom it does.
#[derive(Clone)]
pub struct MiddlewareOptions {
    /// The name by which it is called in answers.
    pub name: Cow<'static, str>,
    /// What to answer to whoever is not let in.
    pub make_response: Arc<MakeResponse>,
    /// How an answer counts, or an error instead of one (`None`).
    pub classify: Arc<Classify>,
    /// InFlightEnd when a call is in flight.
    pub in_flight_end: InFlightEnd,
}

type MakeResponse = dyn Fn(&Limited) -> RejectionResponse + Send + Sync;

/// How an answer counts, or an error instead of one (`None`).
pub type Classify = dyn Fn(Option<&dyn ResponseHead>) -> CallOutcome + Send + Sync;

impl MiddlewareOptions {
    /// Answers with 503 and when to come back, judges as [`classify_server`] does, and is done when the head of an answer is there.
    pub fn new(name: &'static str) -> Self {
        Self {
            name: name.into(),
            make_response: Arc::new(overloaded_response),
            classify: Arc::new(classify_server),
            in_flight_end: InFlightEnd::Head,
        }
    }

    /// The error of a request that was not let in, and the answer to it.
    #[cold]
    pub fn refuse(&self, cause: CallError) -> (Limited, RejectionResponse) {
        let limited = Limited::new(&*self.name, cause);
        let answer = (self.make_response)(&limited);
        (limited, answer)
    }
}

impl fmt::Debug for MiddlewareOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MiddlewareOptions")
            .field("name", &self.name)
            .field("until", &self.in_flight_end)
            .finish_non_exhaustive()
    }
}

/// The part of a surface that is its [`MiddlewareOptions`], said once for all of them: the name it goes by, until when a call is in
/// flight, what is answered. `judged` adds how answers count, where that is asked for.
macro_rules! option_methods {
    (classify) => {
        /// How an answer counts, or an error instead of one (`None`) where the wire has that; as
        /// [`served`](crate::middleware::classify_server) says unless told otherwise.
        #[must_use]
        pub fn classify(
            mut self,
            classify: impl Fn(Option<&dyn $crate::request::ResponseHead>) -> tidegate_overload::CallOutcome
            + Send
            + Sync
            + 'static,
        ) -> Self {
            self.options_mut().classify = ::std::sync::Arc::new(classify);
            self
        }

        $crate::middleware::options::option_methods!();
    };
    () => {
        /// The name by which it is called in answers.
        #[must_use]
        pub fn name(mut self, name: impl Into<::std::borrow::Cow<'static, str>>) -> Self {
            self.options_mut().name = name.into();
            self
        }

        /// InFlightEnd when a call is in flight.
        #[must_use]
        pub fn in_flight_end(mut self, in_flight_end: $crate::middleware::InFlightEnd) -> Self {
            self.options_mut().in_flight_end = in_flight_end;
            self
        }

        /// What to answer to whoever is not let in; 503 and when to come back unless told otherwise.
        #[must_use]
        pub fn with_response(
            mut self,
            response: impl Fn(&$crate::Limited) -> $crate::RejectionResponse + Send + Sync + 'static,
        ) -> Self {
            self.options_mut().make_response = ::std::sync::Arc::new(response);
            self
        }

        /// What it says to whoever is not let in, and how it judges.
        pub fn options(&self) -> &::std::sync::Arc<$crate::middleware::MiddlewareOptions> {
            &self.options
        }

        fn options_mut(&mut self) -> &mut $crate::middleware::MiddlewareOptions {
            ::std::sync::Arc::make_mut(&mut self.options)
        }
    };
}
pub(super) use option_methods;

/// 503, and when to come back: in a second, where nothing better is known.
fn overloaded_response(limited: &Limited) -> RejectionResponse {
    let answer = RejectionResponse::from(limited).status(503);
    match answer.get("retry-after") {
        Some(_) => answer,
        None => answer.header("retry-after", "1"),
    }
}
