//! A service with a gate in front of it.

use super::headers::RateLimitHeaders;
use crate::{
    head::RequestHead,
    held::{Admission, HeldBody, HeldFuture, Said, reply_to, respond},
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
use tidegate_overload::Report;
use tidegate_rule::{Evaluation, Gate, Verdict};

/// A service with a gate in front of it; see [`LimitMiddleware`](super::LimitMiddleware).
pub struct LimitService<S> {
    /// Shared with those who wait for their turn.
    inner: Rc<S>,
    gate: Gate,
}

impl<S> LimitService<S> {
    pub(super) fn new(inner: S, gate: Gate) -> Self {
        Self { inner: Rc::new(inner), gate }
    }
}

impl<S, B> Service<ServiceRequest> for LimitService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Admitted>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        // The extensions are borrowed by the head, and no longer.
        let evaluation = self.gate.check(&RequestHead::of(&request));
        let gate = self.gate.clone();
        match evaluation {
            Evaluation::Ready(verdict) => HeldFuture::now(&*self.inner, respond_to(gate, request, verdict)),
            Evaluation::Pending(verdict) => {
                HeldFuture::later(&self.inner, async move { respond_to(gate, request, verdict.await) })
            }
        }
    }
}

fn respond_to<B>(gate: Gate, request: ServiceRequest, verdict: Verdict) -> Said<B, Admitted> {
    if !verdict.is_admitted() {
        return Said::Answer(respond(request, gate.answer_to(&verdict)));
    }
    let headers = RateLimitHeaders::of(&gate, &verdict);
    let held = verdict.holds_anything().then(|| Box::new((gate, verdict)));
    Said::Enter(request, Admitted { held, headers })
}

/// An admitted request: what is settled or released with the response, if there is anything, and the header fields of that.
pub struct Admitted {
    held: Option<Box<(Gate, Verdict)>>,
    headers: RateLimitHeaders,
}

impl Admission for Admitted {
    fn settle<B: MessageBody>(
        self,
        result: Result<ServiceResponse<B>, Error>,
    ) -> Result<ServiceResponse<HeldBody<B>>, Error> {
        let slots = self.held.map(|held| {
            let (gate, verdict) = *held;
            reply_to(&result, |reply| verdict.settle(&gate, reply))
        });
        let mut response = result?;
        self.headers.write(response.headers_mut());
        Ok(response.map_body(|_, body| match slots.filter(|slots| !slots.is_empty()) {
            Some(slots) => HeldBody::holding(body, slots, Report::Ignored),
            None => HeldBody::free(body),
        }))
    }
}

impl<S> fmt::Debug for LimitService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitService").field(&self.gate).finish()
    }
}
