//! The service of a gate.

use super::headers::RateLimitHeaders;
use crate::{
    head::ActixRequestHead,
    permit::{
        AdmittedServiceRequest, MiddlewareDecision, PermitMessageBody, PermitResponseFuture, respond,
        with_response_head,
    },
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
};
use std::{
    fmt,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_overload::CallOutcome;
use tidegate_rule::{Evaluation, Gate, Verdict};

/// A service with a gate; see [`LimitMiddleware`](super::LimitMiddleware).
pub struct LimitTransformService<S> {
    /// Shared with waiting requests.
    inner: Rc<S>,
    gate: Gate,
}

impl<S> LimitTransformService<S> {
    pub(super) fn new(inner: S, gate: Gate) -> Self {
        Self { inner: Rc::new(inner), gate }
    }
}

impl<S, B> Service<ServiceRequest> for LimitTransformService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<PermitMessageBody<B>>;
    type Error = Error;
    type Future = PermitResponseFuture<S::Future, B, LimitedRequest>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        // The head borrows the extensions, so drop it before the request is used.
        let evaluation = self.gate.check(&ActixRequestHead::new(&request));
        let gate = self.gate.clone();
        match evaluation {
            Evaluation::Ready(verdict) => {
                PermitResponseFuture::immediate(&*self.inner, apply_verdict(gate, request, verdict))
            }
            Evaluation::Pending(verdict) => PermitResponseFuture::deferred(&self.inner, async move {
                apply_verdict(gate, request, verdict.await)
            }),
        }
    }
}

fn apply_verdict<B>(
    gate: Gate,
    request: ServiceRequest,
    verdict: Verdict,
) -> MiddlewareDecision<B, LimitedRequest> {
    if !verdict.is_admitted() {
        return MiddlewareDecision::Respond(respond(request, gate.rejection_response(&verdict)));
    }
    let headers = RateLimitHeaders::from_verdict(&gate, &verdict);
    let reserved = verdict.has_hold().then(|| Box::new((gate, verdict)));
    MiddlewareDecision::Forward(request, LimitedRequest { reserved, headers })
}

/// An admitted request with its reservation, if any, and its rate limit headers.
pub struct LimitedRequest {
    reserved: Option<Box<(Gate, Verdict)>>,
    headers: RateLimitHeaders,
}

impl AdmittedServiceRequest for LimitedRequest {
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<PermitMessageBody<B>>, Error> {
        let permits = self.reserved.map(|reserved| {
            let (gate, verdict) = *reserved;
            with_response_head(&result, |reply| verdict.settle(&gate, reply))
        });
        let mut response = result?;
        self.headers.write(response.headers_mut());
        Ok(response.map_body(|_, body| match permits.filter(|slots| !slots.is_empty()) {
            Some(slots) => PermitMessageBody::with_permit(body, slots, CallOutcome::Ignored),
            None => PermitMessageBody::without_permit(body),
        }))
    }
}

impl<S> fmt::Debug for LimitTransformService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitTransformService").field(&self.gate).finish()
    }
}
