//! Guards for reqwest.

use crate::{
    middleware::MiddlewareService,
    permit::{PermitBody, RequestPermit, ResponseProtocol, reject},
};
use pin_project_lite::pin_project;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _, Url};
use std::{
    any::Any,
    fmt,
    future::{Future, poll_fn},
    net::IpAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_overload::{CallGuard, CallPermit, RecordOutcome};
use tidegate_rule::{
    middleware::{InFlightEnd, MiddlewareOptions, RequestGuard},
    request::{RequestHead, ResponseHead},
};
use tower_service::Service;

/// Guards requests of reqwest. A rejected request gets a local 503 response with a [`tidegate_rule::Limited`] in its
/// extensions.
impl<S, G> Service<Request> for MiddlewareService<S, RequestGuard<G>>
where
    S: Service<Request, Response = Response>,
    G: CallGuard + RecordOutcome<Entry: Send + Sync> + Send + Sync + 'static,
{
    type Response = Response;
    type Error = S::Error;
    type Future = GuardedCall<S::Future, CallPermit<Arc<G>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request) -> Self::Future {
        let options = self.settings.options();
        match self.settings.try_acquire(&ReqwestRequestHead(&request)) {
            Ok(permit) => {
                let (permit, options) = (Some(permit), options.clone());
                GuardedCall {
                    state: GuardedCallState::Call { call: self.inner.call(request), permit, options },
                }
            }
            Err(cause) => {
                let mut rejection = reject(options, ResponseProtocol::Http, cause);
                rejection.extensions_mut().extend(url_extension(request.url().clone()));
                GuardedCall { state: GuardedCallState::Rejected { response: Some(rejection.into()) } }
            }
        }
    }
}

impl<S, G> MiddlewareService<S, RequestGuard<G>> {
    /// Sends one request: waits until the client is ready, and returns the response.
    ///
    /// # Errors
    ///
    /// Returns the error of the client.
    pub async fn send(&self, request: Request) -> Result<Response, S::Error>
    where
        S: Service<Request, Response = Response> + Clone,
        G: CallGuard + RecordOutcome<Entry: Send + Sync> + Send + Sync + 'static,
    {
        let mut client = self.clone();
        poll_fn(|context| client.poll_ready(context)).await?;
        client.call(request).await
    }
}

pin_project! {
    /// A call of reqwest, or its rejection. Dropping it releases the permit.
    pub struct GuardedCall<F, H> {
        #[pin]
        state: GuardedCallState<F, H>,
    }
}

pin_project! {
    #[project = GuardedCallStateProjection]
    enum GuardedCallState<F, H> {
        Call { #[pin] call: F, permit: Option<H>, options: Arc<MiddlewareOptions> },
        Rejected { response: Option<Response> },
    }
}

impl<F, H, E> Future for GuardedCall<F, H>
where
    F: Future<Output = Result<Response, E>>,
    H: RequestPermit,
{
    type Output = Result<Response, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (call, permit, options) = match self.project().state.project() {
            GuardedCallStateProjection::Call { call, permit, options } => (call, permit, options),
            // Polled after completion, which is a bug of the caller.
            GuardedCallStateProjection::Rejected { response } => {
                return response.take().map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
            }
        };
        let result = ready!(call.poll(context));
        let report = match &result {
            Ok(response) => (options.classify)(Some(&ReqwestResponseHead(response))),
            Err(_) => (options.classify)(None),
        };
        Poll::Ready(match (result, permit.take(), options.in_flight_end) {
            (Ok(response), Some(permit), InFlightEnd::Body) => {
                Ok(with_body(response, |body| PermitBody::with_permit(body, permit, report, options)))
            }
            (result, permit, _) => {
                permit.into_iter().for_each(|permit| permit.release(report));
                result
            }
        })
    }
}

impl<F, H> fmt::Debug for GuardedCall<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GuardedCall")
    }
}

/// Wraps the body of a response. Restores the URL, which an `http` response does not have.
fn with_body(response: Response, wrap: impl FnOnce(Body) -> PermitBody<Body>) -> Response {
    let url = response.url().clone();
    let mut response = http::Response::<Body>::from(response);
    response.extensions_mut().extend(url_extension(url));
    response.map(|body| Body::wrap(wrap(body))).into()
}

/// Returns the extension in which reqwest stores the URL of a response.
fn url_extension(url: Url) -> http::Extensions {
    let response = http::Response::builder().url(url).body(());
    response.map(|response| response.into_parts().0.extensions).unwrap_or_default()
}

/// The head of a reqwest request.
struct ReqwestRequestHead<'a>(&'a Request);

impl RequestHead for ReqwestRequestHead<'_> {
    fn method(&self) -> &str {
        self.0.method().as_str()
    }

    fn path(&self) -> &str {
        self.0.url().path()
    }

    fn host(&self) -> Option<&str> {
        self.0.url().host_str()
    }

    fn route(&self) -> Option<&str> {
        None
    }

    fn peer(&self) -> Option<IpAddr> {
        None
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers().get(name).map(http::HeaderValue::as_bytes)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.0.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

/// The head of a reqwest response.
struct ReqwestResponseHead<'a>(&'a Response);

impl ResponseHead for ReqwestResponseHead<'_> {
    fn status(&self) -> u16 {
        self.0.status().as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.headers().get(name).map(http::HeaderValue::as_bytes)
    }
}
