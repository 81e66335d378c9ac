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
        #[pin]
        call: Option<S::Future>,
        // Moved out as a whole. Passing it by reference would force an extra copy of the response.
        work: LimitWork<S, B>,
    }
}

/// The remaining work of the rules.
enum LimitWork<S, B> {
    /// They are being evaluated.
    Check(Box<PendingLimitCheck<S, B>>),
    /// They reject the request; the service is not called.
    Reject(BoxedRejection),
    /// They change the response of the service, unless the action is empty.
    Respond(LimitResponseAction),
    Done,
}

/// A request whose rules are being evaluated, and the service that is ready for it.
struct PendingLimitCheck<S, B> {
    verdict: PendingEvaluation<Verdict>,
    gate: Gate,
    service: S,
    request: Request<B>,
}

/// The work to do when the response arrives.
#[derive(Debug)]
pub(super) enum LimitResponseAction {
    WriteHeaders(RateLimitHeaders),
    /// Settles a reservation, and writes the headers.
    Settle(Box<ReservedVerdict>),
}

/// A verdict that has reservations or slots, and its headers.
#[derive(Debug)]
pub(super) struct ReservedVerdict {
    headers: RateLimitHeaders,
    gate: Gate,
    verdict: Verdict,
}

/// The decision of a gate. It has two words, which fit into registers.
pub(super) enum LimitCheckResult {
    /// Admitted with nothing to settle.
    Admitted(RateLimitHeaders),
    AdmittedWithReservation(Box<ReservedVerdict>),
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
    pub(super) fn from_peer_decision(gate: &Gate, decision: &Decision) -> Self {
        if decision.is_granted()
            && let Some(headers) = RateLimitHeaders::from_decision(gate, 0, decision)
        {
            return Self::Admitted(headers);
        }
        Self::from_verdict(gate, LimitDecision::enforced(0, *decision).into())
    }

    /// Not inlined, so that a verdict of one decision need not be written to memory.
    #[inline(never)]
    fn from_verdict(gate: &Gate, verdict: Verdict) -> Self {
        match verdict.is_admitted() {
            true => match LimitResponseAction::from_verdict(gate, verdict) {
                LimitResponseAction::WriteHeaders(headers) => Self::Admitted(headers),
                LimitResponseAction::Settle(reserved) => Self::AdmittedWithReservation(reserved),
            },
            false => Self::Rejected(Box::new(verdict)),
        }
    }
}

impl LimitResponseAction {
    fn from_verdict(gate: &Gate, verdict: Verdict) -> Self {
        let headers = RateLimitHeaders::from_verdict(gate, &verdict);
        match verdict.has_hold() {
            true => Self::Settle(Box::new(ReservedVerdict { headers, gate: gate.clone(), verdict })),
            false => Self::WriteHeaders(headers),
        }
    }

    #[inline]
    fn is_empty(&self) -> bool {
        matches!(self, Self::WriteHeaders(headers) if headers.is_empty())
    }

    /// Settles the reservation and writes the headers. The body holds the slots of the request.
    #[inline(never)]
    fn apply<R>(self, mut response: Response<R>) -> Response<GateBody<R>> {
        let (headers, permits) = match self {
            Self::WriteHeaders(headers) => (headers, RequestPermits::default()),
            Self::Settle(reserved) => reserved.settle(&response),
        };
        headers.write(response.headers_mut());
        response.map(|body| GateBody::with_permits(body, permits))
    }
}

impl ReservedVerdict {
    #[inline(never)]
    fn settle<R>(self, response: &Response<R>) -> (RateLimitHeaders, RequestPermits) {
        let Self { headers, gate, verdict } = self;
        (headers, verdict.settle(&gate, &TowerResponseHead::new(response)))
    }
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
        let check = Box::new(PendingLimitCheck { verdict, gate, service, request });
        Self { call: None, work: LimitWork::Check(check) }
    }

    #[inline]
    pub(super) fn from_call(call: S::Future, on_response: LimitResponseAction) -> Self {
        Self { call: Some(call), work: LimitWork::Respond(on_response) }
    }

    pub(super) fn from_rejection(rejection: BoxedRejection) -> Self {
        Self { call: None, work: LimitWork::Reject(rejection) }
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<GateBody<R>>, S::Error>;

    // The address of the future is not passed to another function, so that its fields stay in registers.
    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            if let Some(call) = this.call.as_mut().as_pin_mut() {
                let response = ready!(call.poll(context))?;
                return Poll::Ready(Ok(match mem::replace(this.work, LimitWork::Done) {
                    LimitWork::Respond(action) if !action.is_empty() => action.apply(response),
                    _ => response.map(|body| GateBody::from_inner(body)),
                }));
            }
            match mem::replace(this.work, LimitWork::Done) {
                LimitWork::Reject(rejection) => {
                    return Poll::Ready(Ok(rejection.map(GateBody::from_text)));
                }
                LimitWork::Check(check) => match check.poll(context) {
                    LimitCheckPoll::Pending(check) => {
                        *this.work = LimitWork::Check(check);
                        return Poll::Pending;
                    }
                    LimitCheckPoll::Rejected(rejection) => *this.work = LimitWork::Reject(rejection),
                    LimitCheckPoll::Admitted(call, on_response) => {
                        this.call.set(Some(call));
                        *this.work = LimitWork::Respond(on_response);
                    }
                },
                // Polled after completion, which is a bug of the caller.
                LimitWork::Respond(_) | LimitWork::Done => return Poll::Pending,
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
        f.write_str(match &self.work {
            LimitWork::Check(_) => "LimitFuture(pending)",
            LimitWork::Reject(_) => "LimitFuture(rejected)",
            LimitWork::Respond(_) | LimitWork::Done => "LimitFuture(calling)",
        })
    }
}
