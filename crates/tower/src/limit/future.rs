//! The answer of a service behind a gate.

use super::{
    answer::{Refusal, Wire},
    headers::{RateLimitHeaders, enforced},
};
use crate::{GateBody, HttpReply};
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
use tidegate_rule::{Evaluation, Gate, HeldSlots, LimitDecision, Pending, Verdict};
use tower_service::Service;

pin_project! {
    /// The answer of a service behind a gate, or of the gate itself.
    ///
    /// Dropping it while the rules are still evaluated gives back what they have reserved. After that the request pays: its
    /// slots are given back, and its tokens are not.
    pub struct LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        // Whatever is passed on by reference has to stay where it is, and an answer is copied once more for it: what is
        // needed before and after the call is given away as a whole.
        #[pin]
        call: Option<S::Future>,
        before: Before<S, B>,
        after: After,
    }
}

/// What there is to be done before the service is called.
enum Before<S, B> {
    Nothing,
    /// Its rules are still evaluated.
    Pending(Box<Waiting<S, B>>),
    /// It will not be called.
    Refused(Refusal),
}

/// A request whose rules are still evaluated, and the service that was found ready for it.
struct Waiting<S, B> {
    verdict: Pending<Verdict>,
    gate: Gate,
    service: S,
    request: Request<B>,
}

/// What is to be done with the response: most requests have nothing to settle, and where headers are off none to write.
#[derive(Debug)]
pub(super) struct After {
    headers: RateLimitHeaders,
    held: Option<Box<(Gate, Verdict)>>,
}

/// What a gate decided on a request. Two words on purpose, since most requests return it: they fit into registers.
pub(super) enum Checked {
    /// With nothing to settle.
    Admitted(RateLimitHeaders),
    Holding(Box<After>),
    Denied(Box<Verdict>),
    Pending(Box<Pending<Verdict>>),
}

impl Checked {
    #[inline]
    pub(super) fn of(gate: &Gate, evaluation: Evaluation<Verdict>) -> Self {
        match evaluation {
            Evaluation::Ready(verdict) => {
                if let Some((limit, decision)) = verdict.only().and_then(enforced)
                    && decision.is_granted()
                    && !verdict.holds_anything()
                    && let Some(headers) = RateLimitHeaders::of_one(gate, limit, decision)
                {
                    return Self::Admitted(headers);
                }
                Self::of_verdict(gate, verdict)
            }
            Evaluation::Pending(verdict) => Self::Pending(Box::new(verdict)),
        }
    }

    /// By the decision of the only limit of a gate that reads only the address of the peer.
    #[inline]
    pub(super) fn of_peer(gate: &Gate, decision: Decision) -> Self {
        if decision.is_granted()
            && let Some(headers) = RateLimitHeaders::of_one(gate, 0, &decision)
        {
            return Self::Admitted(headers);
        }
        Self::of_verdict(gate, LimitDecision::enforced(0, decision).into())
    }

    /// Kept apart, so that a verdict of one decision need not be written to memory.
    #[inline(never)]
    fn of_verdict(gate: &Gate, verdict: Verdict) -> Self {
        match verdict.is_admitted() {
            true => Self::Holding(Box::new(After::of(gate, verdict))),
            false => Self::Denied(Box::new(verdict)),
        }
    }
}

impl After {
    const NOTHING: Self = Self::writing(RateLimitHeaders::NONE);

    /// Only writes these headers.
    #[inline]
    pub(super) const fn writing(headers: RateLimitHeaders) -> Self {
        Self { headers, held: None }
    }

    fn of(gate: &Gate, verdict: Verdict) -> Self {
        let headers = RateLimitHeaders::of(gate, &verdict);
        let held = verdict.holds_anything().then(|| Box::new((gate.clone(), verdict)));
        Self { headers, held }
    }

    #[inline]
    fn happen<R>(self, response: Response<R>) -> Response<GateBody<R>> {
        match self {
            Self { headers, held: None } if headers.is_none() => response.map(|body| GateBody::own(body)),
            some => some.settle(response),
        }
    }

    /// Settles what was reserved, and writes what is left. The body holds the slots of the request.
    #[inline(never)]
    fn settle<R>(self, mut response: Response<R>) -> Response<GateBody<R>> {
        let slots = self.held.map(|held| settle(*held, &response)).unwrap_or_default();
        self.headers.write(response.headers_mut());
        response.map(|body| GateBody::holding(body, slots))
    }
}

#[inline(never)]
fn settle<R>((gate, verdict): (Gate, Verdict), response: &Response<R>) -> HeldSlots {
    verdict.settle(&gate, &HttpReply::of(response))
}

impl<S, B> LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn pending(verdict: Pending<Verdict>, gate: Gate, service: S, request: Request<B>) -> Self {
        let before = Before::Pending(Box::new(Waiting { verdict, gate, service, request }));
        Self { call: None, before, after: After::NOTHING }
    }

    #[inline]
    pub(super) fn calling(call: S::Future, after: After) -> Self {
        Self { call: Some(call), before: Before::Nothing, after }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { call: None, before: Before::Refused(refusal), after: After::NOTHING }
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
                let after = mem::replace(this.after, After::NOTHING);
                return Poll::Ready(Ok(after.happen(response)));
            }
            match mem::replace(this.before, Before::Nothing) {
                // Polled after it was ready, which no caller may do.
                Before::Nothing => return Poll::Pending,
                Before::Refused(refusal) => return Poll::Ready(Ok(refusal.map(GateBody::text))),
                Before::Pending(waiting) => match waiting.poll(context) {
                    Turn::NotYet(waiting) => {
                        *this.before = Before::Pending(waiting);
                        return Poll::Pending;
                    }
                    Turn::Call(call, after) => {
                        this.call.set(Some(call));
                        *this.after = after;
                    }
                    Turn::Refuse(refusal) => *this.before = Before::Refused(refusal),
                },
            }
        }
    }
}

/// What has become of a request that waits.
enum Turn<S, B, F> {
    NotYet(Box<Waiting<S, B>>),
    Call(F, After),
    Refuse(Refusal),
}

impl<S, B> Waiting<S, B>
where
    S: Service<Request<B>>,
{
    #[inline(never)]
    fn poll(mut self: Box<Self>, context: &mut Context<'_>) -> Turn<S, B, S::Future> {
        let Poll::Ready(verdict) = self.verdict.as_mut().poll(context) else { return Turn::NotYet(self) };
        let Self { gate, mut service, request, .. } = *self;
        if !verdict.is_admitted() {
            return Turn::Refuse(Wire::of(&request).answer(&gate, &verdict));
        }
        let after = After::of(&gate, verdict);
        Turn::Call(service.call(request), after)
    }
}

impl<S, B> fmt::Debug for LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.before {
            Before::Nothing => "LimitFuture(calling)",
            Before::Pending(_) => "LimitFuture(pending)",
            Before::Refused(_) => "LimitFuture(refused)",
        })
    }
}
