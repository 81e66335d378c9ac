//! The response future of a service with a policy.

use super::{body::BandwidthBody, rejection::RequestProtocol};
use crate::{GateBody, TowerResponseHead, limit::RateLimitHeaders};
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
use tidegate_rule::PendingEvaluation;
use tower_service::Service;

pin_project! {
    /// The response of the service, or the rejection by the policy.
    ///
    /// Dropping it while the rules are evaluated refunds all reservations. Dropping it later releases the slots, but
    /// not the tokens.
    pub struct PolicyFuture<S, B>
    where
        S: Service<Request<BandwidthBody<B>>>,
    {
        #[pin]
        call: Option<S::Future>,
        check: PolicyCheckState<S, B>,
        on_response: Option<PolicyResponseAction>,
    }
}

/// The state before the service is called.
enum PolicyCheckState<S, B> {
    Done,
    /// The rules are being evaluated.
    Pending(Box<PendingPolicyCheck<S, B>>),
    /// The service is not called.
    Rejected(Box<Response<Bytes>>),
}

/// A request whose rules are being evaluated, and the service that is ready for it.
struct PendingPolicyCheck<S, B> {
    result: PendingEvaluation<PolicyResult>,
    service: S,
    request: Request<B>,
}

/// The work to do when the response arrives.
pub(super) struct PolicyResponseAction {
    headers: RateLimitHeaders,
    admission: Box<PolicyAdmission>,
}

impl PolicyResponseAction {
    pub(super) fn from_admission(admission: PolicyAdmission) -> Self {
        let headers = RateLimitHeaders::from_verdict(admission.gate(), admission.verdict());
        Self { headers, admission: Box::new(admission) }
    }

    /// Settles the charges and writes the rate limit headers. The body holds the slots and has the bandwidth limits.
    fn apply<R, E>(self, result: Result<Response<R>, E>) -> Result<Response<GateBody<BandwidthBody<R>>>, E> {
        let mut response = match result {
            Ok(response) => response,
            Err(error) => {
                self.admission.fail();
                return Err(error);
            }
        };
        let down = self.admission.response_rates().to_vec();
        let permits = self.admission.settle(&TowerResponseHead::new(&response));
        self.headers.write(response.headers_mut());
        Ok(response.map(|body| GateBody::with_permits(BandwidthBody::new(body, &down), permits)))
    }
}

impl<S, B> PolicyFuture<S, B>
where
    S: Service<Request<BandwidthBody<B>>>,
{
    pub(super) fn pending(result: PendingEvaluation<PolicyResult>, service: S, request: Request<B>) -> Self {
        let check = PolicyCheckState::Pending(Box::new(PendingPolicyCheck { result, service, request }));
        Self { call: None, check, on_response: None }
    }

    pub(super) fn from_call(call: S::Future, on_response: PolicyResponseAction) -> Self {
        Self { call: Some(call), check: PolicyCheckState::Done, on_response: Some(on_response) }
    }

    pub(super) fn from_rejection(answer: Box<Response<Bytes>>) -> Self {
        Self { call: None, check: PolicyCheckState::Rejected(answer), on_response: None }
    }
}

impl<S, B, R> Future for PolicyFuture<S, B>
where
    S: Service<Request<BandwidthBody<B>>, Response = Response<R>>,
{
    type Output = Result<Response<GateBody<BandwidthBody<R>>>, S::Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let result = ready!(call.poll(context));
                // Polled after completion, which is a bug of the caller.
                let Some(on_response) = this.on_response.take() else { return Poll::Pending };
                return Poll::Ready(on_response.apply(result));
            }
            match mem::replace(this.check, PolicyCheckState::Done) {
                PolicyCheckState::Done => return Poll::Pending,
                PolicyCheckState::Rejected(answer) => {
                    return Poll::Ready(Ok(answer.map(GateBody::from_text)));
                }
                PolicyCheckState::Pending(mut pending) => {
                    let Poll::Ready(result) = pending.result.as_mut().poll(context) else {
                        *this.check = PolicyCheckState::Pending(pending);
                        return Poll::Pending;
                    };
                    let PendingPolicyCheck { mut service, request, .. } = *pending;
                    match result {
                        PolicyResult::Admitted(admission) => {
                            let request =
                                request.map(|body| BandwidthBody::new(body, admission.request_rates()));
                            this.call.set(Some(service.call(request)));
                            *this.on_response = Some(PolicyResponseAction::from_admission(admission));
                        }
                        PolicyResult::Rejected(rejection) => {
                            *this.check = PolicyCheckState::Rejected(
                                RequestProtocol::detect(&request).reject(*rejection),
                            );
                        }
                    }
                }
            }
        }
    }
}

impl<S, B> fmt::Debug for PolicyFuture<S, B>
where
    S: Service<Request<BandwidthBody<B>>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.check {
            PolicyCheckState::Done => "PolicyFuture(calling)",
            PolicyCheckState::Pending(_) => "PolicyFuture(pending)",
            PolicyCheckState::Rejected(_) => "PolicyFuture(rejected)",
        })
    }
}
