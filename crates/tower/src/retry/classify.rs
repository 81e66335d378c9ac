//! Which requests may be sent twice, and which results are retried.

#[cfg(feature = "reqwest")]
use crate::client::RetryAfterError;
use crate::client::{ClientRequest, ClientResponse, ServerBackoff, parse_wait};
use http::{Method, StatusCode};
use std::{error::Error, fmt, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_overload::RetryAction;
use tidegate_rule::Limited;

/// Decides which requests may be sent twice, and which results are retried.
pub trait RetryClassifier<Q, T, E> {
    /// Returns a copy of the request; `None` if it must be sent only once.
    fn clone_request(&self, request: &Q) -> Option<Q>;

    /// Returns what to do with a result. `now` is the time since the Unix epoch.
    fn classify(&self, result: &Result<T, E>, now: Micros) -> RetryAction;
}

/// An HTTP request that can be copied, unless its body is a stream.
pub trait RetryRequest: ClientRequest + Sized {
    /// Returns the method.
    fn method(&self) -> &Method;

    /// Returns a copy; `None` if the body cannot be copied.
    fn try_clone(&self) -> Option<Self>;
}

impl<B: Clone> RetryRequest for http::Request<B> {
    fn method(&self) -> &Method {
        self.method()
    }

    fn try_clone(&self) -> Option<Self> {
        Some(self.clone())
    }
}

#[cfg(feature = "reqwest")]
impl RetryRequest for reqwest::Request {
    fn method(&self) -> &Method {
        self.method()
    }

    fn try_clone(&self) -> Option<Self> {
        self.try_clone()
    }
}

/// Retries idempotent HTTP requests: after connection errors, after 502, 503 and 504, and after 429 with `Retry-After`.
///
/// A wait that a response of 429 or 503 requests is honoured, and so is the retry time of a rejection by a
/// [`GuardLayer`](crate::GuardLayer) or a [`RetryAfterLayer`](crate::RetryAfterLayer) inside. A rejection without a retry time
/// is not retried.
#[derive(Clone, Default)]
pub struct HttpRetries {
    is_repeatable: Option<Arc<RepeatableFn>>,
}

type RepeatableFn = dyn Fn(&Method, &dyn ClientRequest) -> bool + Send + Sync;

impl HttpRetries {
    /// Creates the default: requests with an idempotent method may be sent twice.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets which requests may be sent twice, such as those with an `Idempotency-Key`.
    #[must_use]
    pub fn repeat_if(
        self,
        is_repeatable: impl Fn(&Method, &dyn ClientRequest) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { is_repeatable: Some(Arc::new(is_repeatable)) }
    }
}

impl<Q, T, E> RetryClassifier<Q, T, E> for HttpRetries
where
    Q: RetryRequest,
    T: ClientResponse,
    E: Error + 'static,
{
    fn clone_request(&self, request: &Q) -> Option<Q> {
        let method = RetryRequest::method(request);
        let is_repeatable = match &self.is_repeatable {
            Some(is_repeatable) => is_repeatable(method, request),
            None => method.is_idempotent(),
        };
        if is_repeatable { request.try_clone() } else { None }
    }

    fn classify(&self, result: &Result<T, E>, now: Micros) -> RetryAction {
        let response = match result {
            Ok(response) => response,
            Err(error) => return classify_error(error),
        };
        // The response to a rejection may have a `Retry-After` of its own, although the time is unknown.
        if let Some(limited) = response.limited() {
            return classify_rejection(limited.retry_after());
        }
        let requested = || {
            parse_wait(response, now).map(|wait| match wait {
                Micros::ZERO => RetryAction::Retry,
                wait => RetryAction::RetryAfter(wait),
            })
        };
        match response.status() {
            // Without a time, the client exceeds a quota of unknown length.
            StatusCode::TOO_MANY_REQUESTS => requested().unwrap_or(RetryAction::Finish),
            StatusCode::SERVICE_UNAVAILABLE => requested().unwrap_or(RetryAction::Retry),
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => RetryAction::Retry,
            _ => RetryAction::Finish,
        }
    }
}

/// Retries errors of the connection. A rejection of the client itself is retried after its retry time.
fn classify_error(error: &(dyn Error + 'static)) -> RetryAction {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(limited) = error.downcast_ref::<Limited>() {
            return classify_rejection(limited.retry_after());
        }
        if let Some(backoff) = error.downcast_ref::<ServerBackoff>() {
            return classify_rejection(Some(backoff.wait));
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = reqwest_error(error) {
            let is_permanent = error.is_builder() || error.is_redirect() || error.is_decode();
            return if is_permanent { RetryAction::Finish } else { RetryAction::Retry };
        }
        cause = error.source();
    }
    RetryAction::Retry
}

/// Returns an error of reqwest. A [`RetryAfterError`] has the source of its inner error, and not the inner error itself.
#[cfg(feature = "reqwest")]
fn reqwest_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a reqwest::Error> {
    match error.downcast_ref() {
        Some(RetryAfterError::Failed(error)) => Some(error),
        _ => error.downcast_ref(),
    }
}

/// Retries a rejection of the client itself after its retry time, if it has one.
fn classify_rejection(retry_after: Option<Duration>) -> RetryAction {
    retry_after.map_or(RetryAction::Finish, RetryAction::retry_after)
}

impl fmt::Debug for HttpRetries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HttpRetries")
    }
}

/// Retries every `Err`, of any service whose requests can be cloned.
#[derive(Clone, Copy, Debug, Default)]
pub struct CloneRetries;

impl<Q: Clone, T, E> RetryClassifier<Q, T, E> for CloneRetries {
    fn clone_request(&self, request: &Q) -> Option<Q> {
        Some(request.clone())
    }

    fn classify(&self, result: &Result<T, E>, _: Micros) -> RetryAction {
        RetryAction::from_result(result)
    }
}
