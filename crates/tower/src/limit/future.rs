//! The response future of a service with a gate.

use super::{
    headers::{RateLimitHeaders, enforced_decision},
    rejection::{BoxedRejection, ResponseProtocol},
};
use crate::{GateBody, TowerResponseHead};
use http::{Request, Response};
use pin_project_lite::pin_project;
use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};
use tidegate_core::Decision;
use tidegate_rule::{Evaluation, Gate, LimitDecision, PendingEvaluation, RequestPermits, Verdict};
use tower_service::Service;

pin_project! {
    /// The response of the service, or the rejection by the gate.
    ///
    /// Dropping it while the rules are evaluated refunds all reservations. Dropping it later releases the slots, but
    /// not the tokens.
    pub struct LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        // These fields are moved out as a whole. Passing them by reference would force an extra copy of the response.
        #[pin]
        call: Option<S::Future>,
        check: LimitCheckState<S, B>,
        on_response: LimitResponseAction,
    }
}

/// The state before the service is called.
enum LimitCheckState<S, B> {
    Done,
    /// The rules are being evaluated.
    Pending(Box<PendingLimitCheck<S, B>>),
    /// The service is not called.
    Rejected(BoxedRejection),
}

/// A request whose rules are being evaluated, and the service that is ready for it.
struct PendingLimitCheck<S, B> {
    verdict: PendingEvaluation<Verdict>,
    gate: Gate,
    service: S,
    request: Request<B>,
}

/// The work to do when the response arrives. Most requests have nothing to settle.
#[derive(Debug)]
pub(super) struct LimitResponseAction {
    headers: RateLimitHeaders,
    reserved: Option<Box<(Gate, Verdict)>>,
}

/// The decision of a gate. It has two words, which fit into registers.
pub(super) enum LimitCheckResult {
    /// Admitted with nothing to settle.
    Admitted(RateLimitHeaders),
    AdmittedWithAction(Box<LimitResponseAction>),
    Rejected(Box<Verdict>),
    Pending(Box<PendingEvaluation<Verdict>>),
}

impl LimitCheckResult {
    #[inline]
    pub(super) fn from_evaluation(gate: &Gate, evaluation: Evaluation<Verdict>) -> Self {
        match evaluation {
            Evaluation::Ready(verdict) => {
                if let Some((limit, decision)) = verdict.single().and_then(enforced_decision)
                    && decision.is_granted()
                    && !verdict.has_hold()
                    && let Some(headers) = RateLimitHeaders::from_decision(gate, limit, decision)
                {
                    return Self::Admitted(headers);
                }
                Self::from_verdict(gate, verdict)
            }
            Evaluation::Pending(verdict) => Self::Pending(Box::new(verdict)),
        }
    }

    /// Converts the decision of a gate with a single limit by peer address.
    #[inline]
    pub(super) fn from_peer_decision(gate: &Gate, decision: Decision) -> Self {
        if decision.is_granted()
            && let Some(headers) = RateLimitHeaders::from_decision(gate, 0, &decision)
        {
            return Self::Admitted(headers);
        }
        Self::from_verdict(gate, LimitDecision::enforced(0, decision).into())
    }

    /// Not inlined, so that a verdict of one decision need not be written to memory.
    #[inline(never)]
    fn from_verdict(gate: &Gate, verdict: Verdict) -> Self {
        match verdict.is_admitted() {
            true => Self::AdmittedWithAction(Box::new(LimitResponseAction::from_verdict(gate, verdict))),
            false => Self::Rejected(Box::new(verdict)),
        }
    }
}

impl LimitResponseAction {
    const NONE: Self = Self::from_headers(RateLimitHeaders::EMPTY);

    /// Creates an action that only writes these headers.
    #[inline]
    pub(super) const fn from_headers(headers: RateLimitHeaders) -> Self {
        Self { headers, reserved: None }
    }

    fn from_verdict(gate: &Gate, verdict: Verdict) -> Self {
        let headers = RateLimitHeaders::from_verdict(gate, &verdict);
        let reserved = verdict.has_hold().then(|| Box::new((gate.clone(), verdict)));
        Self { headers, reserved }
    }

    #[inline]
    fn apply<R>(self, response: Response<R>) -> Response<GateBody<R>> {
        match self {
            Self { headers, reserved: None } if headers.is_empty() => {
                response.map(|body| GateBody::from_inner(body))
            }
            some => some.settle(response),
        }
    }

    /// Settles the reservation and writes the headers. The body holds the slots of the request.
    #[inline(never)]
    fn settle<R>(self, mut response: Response<R>) -> Response<GateBody<R>> {
        let permits = self.reserved.map(|reserved| settle(*reserved, &response)).unwrap_or_default();
        self.headers.write(response.headers_mut());
        response.map(|body| GateBody::with_permits(body, permits))
    }
}

#[inline(never)]
fn settle<R>((gate, verdict): (Gate, Verdict), response: &Response<R>) -> RequestPermits {
    verdict.settle(&gate, &TowerResponseHead::new(response))
}

impl<S, B> LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn pending(
        verdict: PendingEvaluation<Verdict>,
        gate: Gate,
        service: S,
        request: Request<B>,
    ) -> Self {
        let check = LimitCheckState::Pending(Box::new(PendingLimitCheck { verdict, gate, service, request }));
        Self { call: None, check, on_response: LimitResponseAction::NONE }
    }

    #[inline]
    pub(super) fn from_call(call: S::Future, on_response: LimitResponseAction) -> Self {
        Self { call: Some(call), check: LimitCheckState::Done, on_response }
    }

    pub(super) fn from_rejection(rejection: BoxedRejection) -> Self {
        Self {
            call: None,
            check: LimitCheckState::Rejected(rejection),
            on_response: LimitResponseAction::NONE,
        }
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<GateBody<R>>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let response = ready!(call.poll(context))?;
                let on_response = mem::replace(this.on_response, LimitResponseAction::NONE);
                return Poll::Ready(Ok(on_response.apply(response)));
            }
            match mem::replace(this.check, LimitCheckState::Done) {
                // Polled after completion, which is a bug of the caller.
                LimitCheckState::Done => return Poll::Pending,
                LimitCheckState::Rejected(rejection) => {
                    return Poll::Ready(Ok(rejection.map(GateBody::from_text)));
                }
                LimitCheckState::Pending(pending) => match pending.poll(context) {
                    LimitCheckPoll::Pending(pending) => {
                        *this.check = LimitCheckState::Pending(pending);
                        return Poll::Pending;
                    }
                    LimitCheckPoll::Admitted(call, on_response) => {
                        this.call.set(Some(call));
                        *this.on_response = on_response;
                    }
                    LimitCheckPoll::Rejected(rejection) => *this.check = LimitCheckState::Rejected(rejection),
                },
            }
        }
    }
}

/// The progress of a pending check.
enum LimitCheckPoll<S, B, F> {
    Pending(Box<PendingLimitCheck<S, B>>),
    Admitted(F, LimitResponseAction),
    Rejected(BoxedRejection),
}

impl<S, B> PendingLimitCheck<S, B>
where
    S: Service<Request<B>>,
{
    #[inline(never)]
    fn poll(mut self: Box<Self>, context: &mut Context<'_>) -> LimitCheckPoll<S, B, S::Future> {
        let Poll::Ready(verdict) = self.verdict.as_mut().poll(context) else {
            return LimitCheckPoll::Pending(self);
        };
        let Self { gate, mut service, request, .. } = *self;
        if !verdict.is_admitted() {
            return LimitCheckPoll::Rejected(ResponseProtocol::detect(&request).reject(&gate, &verdict));
        }
        let on_response = LimitResponseAction::from_verdict(&gate, verdict);
        LimitCheckPoll::Admitted(service.call(request), on_response)
    }
}

impl<S, B> fmt::Debug for LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.check {
            LimitCheckState::Done => "LimitFuture(calling)",
            LimitCheckState::Pending(_) => "LimitFuture(pending)",
            LimitCheckState::Rejected(_) => "LimitFuture(rejected)",
        })
    }
}
