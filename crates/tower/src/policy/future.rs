//! The answer of a service behind a policy.

use super::{body::Paced, refusal::Origin};
use crate::{GateBody, HttpReply, limit::RateLimitHeaders};
use bytes::Bytes;
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_policy::compile::{PolicyAdmission, PolicyResult};
use tidegate_rule::Pending;
use tower_service::Service;

pin_project! {
    /// The answer of a service behind a policy, or of the policy itself.
    ///
    /// Dropping it while the rules are still evaluated gives back what they have reserved. After that the request pays: its
    /// slots are given back, and its tokens are not.
    pub struct PolicyFuture<S, B>
    where
        S: Service<Request<Paced<B>>>,
    {
        #[pin]
        call: Option<S::Future>,
        before: Before<S, B>,
        after: Option<After>,
    }
}

/// What there is to be done before the service is called.
enum Before<S, B> {
    Nothing,
    /// Its rules are still evaluated.
    Pending(Box<Waiting<S, B>>),
    /// It will not be called.
    Refused(Box<Response<Bytes>>),
}

/// A request whose rules are still evaluated, and the service that was found ready for it.
struct Waiting<S, B> {
    result: Pending<PolicyResult>,
    service: S,
    request: Request<B>,
}

/// What is to be done with the answer.
pub(super) struct After {
    headers: RateLimitHeaders,
    admission: Box<PolicyAdmission>,
}

impl After {
    pub(super) fn of(admission: PolicyAdmission) -> Self {
        let headers = RateLimitHeaders::of(admission.gate(), admission.verdict());
        Self { headers, admission: Box::new(admission) }
    }

    /// Settles what was taken, and tells what is left. The body holds the slots of the request, and moves as it may.
    fn happen<R, E>(self, result: Result<Response<R>, E>) -> Result<Response<GateBody<Paced<R>>>, E> {
        let mut response = match result {
            Ok(response) => response,
            Err(error) => {
                self.admission.fail();
                return Err(error);
            }
        };
        let down = self.admission.response_rates().to_vec();
        let held = self.admission.settle(&HttpReply::of(&response));
        self.headers.write(response.headers_mut());
        Ok(response.map(|body| GateBody::holding(Paced::new(body, &down), held)))
    }
}

impl<S, B> PolicyFuture<S, B>
where
    S: Service<Request<Paced<B>>>,
{
    pub(super) fn pending(result: Pending<PolicyResult>, service: S, request: Request<B>) -> Self {
        let before = Before::Pending(Box::new(Waiting { result, service, request }));
        Self { call: None, before, after: None }
    }

    pub(super) fn calling(call: S::Future, after: After) -> Self {
        Self { call: Some(call), before: Before::Nothing, after: Some(after) }
    }

    pub(super) fn refused(answer: Box<Response<Bytes>>) -> Self {
        Self { call: None, before: Before::Refused(answer), after: None }
    }
}

impl<S, B, R> Future for PolicyFuture<S, B>
where
    S: Service<Request<Paced<B>>, Response = Response<R>>,
{
    type Output = Result<Response<GateBody<Paced<R>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let result = ready!(call.poll(context));
                // Polled after it was ready, which no caller may do.
                let Some(after) = this.after.take() else { return Poll::Pending };
                return Poll::Ready(after.happen(result));
            }
            match mem::replace(this.before, Before::Nothing) {
                Before::Nothing => return Poll::Pending,
                Before::Refused(answer) => return Poll::Ready(Ok(answer.map(GateBody::text))),
                Before::Pending(mut waiting) => {
                    let Poll::Ready(result) = waiting.result.as_mut().poll(context) else {
                        *this.before = Before::Pending(waiting);
                        return Poll::Pending;
                    };
                    let Waiting { mut service, request, .. } = *waiting;
                    match result {
                        PolicyResult::Admitted(admission) => {
                            let request = request.map(|body| Paced::new(body, admission.request_rates()));
                            this.call.set(Some(service.call(request)));
                            *this.after = Some(After::of(admission));
                        }
                        PolicyResult::Refused(refusal) => {
                            *this.before = Before::Refused(Origin::of(&request).answer(*refusal));
                        }
                    }
                }
            }
        }
    }
}

impl<S, B> fmt::Debug for PolicyFuture<S, B>
where
    S: Service<Request<Paced<B>>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.before {
            Before::Nothing => "PolicyFuture(calling)",
            Before::Pending(_) => "PolicyFuture(pending)",
            Before::Refused(_) => "PolicyFuture(refused)",
        })
    }
}
