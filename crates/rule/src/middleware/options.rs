//! The response to rejected requests, and the classification of responses.

use super::classify::{InFlightEnd, classify_server};
use crate::{Limited, RejectionResponse, request::ResponseHead};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_overload::{CallError, CallOutcome};

/// The response to rejected requests, and the classification of responses.
#[derive(Clone)]
pub struct MiddlewareOptions {
    /// The name in error messages and responses.
    pub name: Cow<'static, str>,
    /// Makes the response to a rejected request.
    pub make_response: Arc<MakeResponse>,
    /// Classifies a response, or an error instead of one (`None`).
    pub classify: Arc<Classify>,
    /// When a call stops being in flight.
    pub in_flight_end: InFlightEnd,
}

type MakeResponse = dyn Fn(&Limited) -> RejectionResponse + Send + Sync;

/// Classifies a response, or an error instead of one (`None`).
pub type Classify = dyn Fn(Option<&dyn ResponseHead>) -> CallOutcome + Send + Sync;

impl MiddlewareOptions {
    /// Responds with 503 and `Retry-After`, classifies like [`classify_server`], and ends a call at the head
    /// of its response.
    pub fn new(name: &'static str) -> Self {
        Self {
            name: name.into(),
            make_response: Arc::new(overloaded_response),
            classify: Arc::new(classify_server),
            in_flight_end: InFlightEnd::Head,
        }
    }

    /// The error of a rejected request, and the response to it.
    #[cold]
    pub fn reject(&self, cause: CallError) -> (Limited, RejectionResponse) {
        let limited = Limited::new(&*self.name, cause);
        let response = (self.make_response)(&limited);
        (limited, response)
    }
}

impl fmt::Debug for MiddlewareOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MiddlewareOptions")
            .field("name", &self.name)
            .field("in_flight_end", &self.in_flight_end)
            .finish_non_exhaustive()
    }
}

/// The builder methods for [`MiddlewareOptions`], defined once: the name, when a call stops being in flight,
/// and the response. `classify` adds the classification of responses.
macro_rules! option_methods {
    (classify) => {
        /// Classifies a response, or an error instead of one (`None`) if the framework has them; like
        /// [`classify_server`](crate::middleware::classify_server) by default.
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
        /// Sets the name in error messages and responses.
        #[must_use]
        pub fn name(mut self, name: impl Into<::std::borrow::Cow<'static, str>>) -> Self {
            self.options_mut().name = name.into();
            self
        }

        /// Sets when a call stops being in flight.
        #[must_use]
        pub fn in_flight_end(mut self, in_flight_end: $crate::middleware::InFlightEnd) -> Self {
            self.options_mut().in_flight_end = in_flight_end;
            self
        }

        /// Sets the response to rejected requests; 503 with `Retry-After` by default.
        #[must_use]
        pub fn with_response(
            mut self,
            response: impl Fn(&$crate::Limited) -> $crate::RejectionResponse + Send + Sync + 'static,
        ) -> Self {
            self.options_mut().make_response = ::std::sync::Arc::new(response);
            self
        }

        /// The response to rejected requests, and the classification of responses.
        pub fn options(&self) -> &::std::sync::Arc<$crate::middleware::MiddlewareOptions> {
            &self.options
        }

        fn options_mut(&mut self) -> &mut $crate::middleware::MiddlewareOptions {
            ::std::sync::Arc::make_mut(&mut self.options)
        }
    };
}
pub(super) use option_methods;

/// 503 with `Retry-After`: one second, if the time is unknown.
fn overloaded_response(limited: &Limited) -> RejectionResponse {
    let response = RejectionResponse::from(limited).status(503);
    match response.get("retry-after") {
        Some(_) => response,
        None => response.header("retry-after", "1"),
    }
}
