//! A response future that holds the permit of its request.

use super::{
    body::PermitBody,
    release::{RequestPermit, classify},
};
use bytes::Bytes;
use http::Response;
use http_body::Body;
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_rule::middleware::{InFlightEnd, MiddlewareOptions};

pin_project! {
    /// The response of the service, or a rejection. Dropping it releases the permit.
    pub struct PermitFuture<F, H> {
        #[pin]
        state: PermitFutureState<F, H>,
    }
}

pin_project! {
    #[project = PermitFutureStateProjection]
    enum PermitFutureState<F, H> {
        Inner { #[pin] inner: F, permit: Option<H>, options: Arc<MiddlewareOptions> },
        Local { response: Option<Response<Bytes>> },
    }
}

impl<F, H> PermitFuture<F, H> {
    pub(crate) fn forward(inner: F, permit: H, options: Arc<MiddlewareOptions>) -> Self {
        Self { state: PermitFutureState::Inner { inner, permit: Some(permit), options } }
    }

    pub(crate) fn respond(response: Response<Bytes>) -> Self {
        Self { state: PermitFutureState::Local { response: Some(response) } }
    }
}

impl<F, H, R, E> Future for PermitFuture<F, H>
where
    F: Future<Output = Result<Response<R>, E>>,
    H: RequestPermit,
    R: Body,
{
    type Output = Result<Response<PermitBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let (inner, permit, options) = match self.project().state.project() {
            PermitFutureStateProjection::Inner { inner, permit, options } => (inner, permit, options),
            PermitFutureStateProjection::Local { response } => {
                // Polled after completion, which is a bug of the caller; do not panic.
                let Some(response) = response.take() else { return Poll::Pending };
                return Poll::Ready(Ok(response.map(PermitBody::from_bytes)));
            }
        };
        let result = ready!(inner.poll(context));
        let report = classify(options, result.as_ref().ok());
        let permit = permit.take();
        Poll::Ready(match (result, permit, options.in_flight_end) {
            (Ok(response), Some(permit), InFlightEnd::Body) => {
                Ok(response.map(|body| PermitBody::with_permit(body, permit, report, options)))
            }
            (result, permit, _) => {
                permit.into_iter().for_each(|permit| permit.release(report));
                result.map(|response| response.map(PermitBody::without_permit))
            }
        })
    }
}

impl<F, H> fmt::Debug for PermitFuture<F, H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitFuture")
    }
}
