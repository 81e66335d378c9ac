//! A response future that holds the permit of its request.

use super::body::PermitMessageBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
};
use pin_project_lite::pin_project;
use std::{
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

/// An admitted request.
pub trait AdmittedServiceRequest: 'static {
    /// Settles the request with its response. Dropping the request instead means that it was cancelled.
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<PermitMessageBody<B>>, Error>;
}

pin_project! {
    /// The response of the service, possibly after a wait, or a rejection. Dropping it releases the permit.
    pub struct PermitResponseFuture<F, B, A> {
        #[pin]
        state: PermitResponseState<F, B, A>,
    }
}

pin_project! {
    #[project = PermitResponseStateProjection]
    enum PermitResponseState<F, B, A> {
        Inner { #[pin] inner: F, admission: Option<A> },
        Deferred { waiting: Pin<Box<dyn Future<Output = ResponseResult<B>>>> },
        Local { response: Option<ServiceResponse<PermitMessageBody<B>>> },
    }
}

type ResponseResult<B> = Result<ServiceResponse<PermitMessageBody<B>>, Error>;

/// The decision for a request.
pub(crate) enum MiddlewareDecision<B, A> {
    Forward(ServiceRequest, A),
    Respond(ServiceResponse<PermitMessageBody<B>>),
}

impl<F, B, A> PermitResponseFuture<F, B, A>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody + 'static,
    A: AdmittedServiceRequest,
{
    /// Applies a decision immediately.
    pub(crate) fn immediate<S>(service: &S, decision: MiddlewareDecision<B, A>) -> Self
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error, Future = F>,
    {
        let state = match decision {
            MiddlewareDecision::Forward(request, admission) => {
                PermitResponseState::Inner { inner: service.call(request), admission: Some(admission) }
            }
            MiddlewareDecision::Respond(response) => PermitResponseState::Local { response: Some(response) },
        };
        Self { state }
    }

    /// Waits for the decision, then applies it.
    pub(crate) fn deferred<S>(
        service: &Rc<S>,
        decision: impl Future<Output = MiddlewareDecision<B, A>> + 'static,
    ) -> Self
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error, Future = F> + 'static,
    {
        let service = service.clone();
        let waiting = async move {
            match decision.await {
                MiddlewareDecision::Forward(request, admission) => {
                    admission.settle(service.call(request).await)
                }
                MiddlewareDecision::Respond(response) => Ok(response),
            }
        };
        Self { state: PermitResponseState::Deferred { waiting: Box::pin(waiting) } }
    }
}

impl<F, B, A> Future for PermitResponseFuture<F, B, A>
where
    F: Future<Output = Result<ServiceResponse<B>, Error>>,
    B: MessageBody,
    A: AdmittedServiceRequest,
{
    type Output = ResponseResult<B>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // If polled after completion, which is a bug of the caller, return `Pending` instead of a panic.
        match self.project().state.project() {
            PermitResponseStateProjection::Inner { inner, admission } => {
                let result = ready!(inner.poll(context));
                match admission.take() {
                    Some(admission) => Poll::Ready(admission.settle(result)),
                    None => Poll::Pending,
                }
            }
            PermitResponseStateProjection::Deferred { waiting } => waiting.as_mut().poll(context),
            PermitResponseStateProjection::Local { response } => {
                response.take().map_or(Poll::Pending, |it| Poll::Ready(Ok(it)))
            }
        }
    }
}

impl<F, B, A> fmt::Debug for PermitResponseFuture<F, B, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PermitResponseFuture")
    }
}
