//! The answer of a service behind a gate.

use super::{
    answer::{Refusal, Wire},
    headers::Told,
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
use tidegate_rule::{Asking, Gate, HeldSlots, Rulings};
use tower_service::Service;

pin_project! {
    /// The answer of a service behind a gate, or of the gate itself.
    ///
    /// Dropping it while the rules are still being asked gives back what they have taken. After that the request pays: its
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
    /// Its rules are still being asked.
    Asking(Box<Waiting<S, B>>),
    /// It will not be called.
    Refused(Refusal),
}

/// A request whose rules are still being asked, and the service that was found ready for it.
struct Waiting<S, B> {
    asking: Asking,
    gate: Gate,
    service: S,
    request: Request<B>,
}

/// What is to be done with the answer: most requests have nothing to settle, and where headers are off nothing to tell.
#[derive(Debug)]
pub(super) struct After {
    told: Told,
    held: Option<Box<(Gate, Rulings)>>,
}

impl After {
    const NOTHING: Self = Self::telling(Told::NOTHING);

    /// Only to tell what is left.
    #[inline]
    pub(super) const fn telling(told: Told) -> Self {
        Self { told, held: None }
    }

    pub(super) fn of(gate: &Gate, rulings: Rulings) -> Self {
        let told = Told::of(gate, &gate.verdict(&rulings));
        let held = rulings.holds_anything().then(|| Box::new((gate.clone(), rulings)));
        Self { told, held }
    }

    #[inline]
    fn happen<R>(self, response: Response<R>) -> Response<GateBody<R>> {
        match self {
            Self { told, held: None } if told.is_nothing() => response.map(|body| GateBody::own(body, None)),
            some => some.tell_and_settle(response),
        }
    }

    /// Settles what was taken, and tells what is left. The body holds the slots of the request.
    #[inline(never)]
    fn tell_and_settle<R>(self, mut response: Response<R>) -> Response<GateBody<R>> {
        let slots = self.held.and_then(|held| settle(*held, &response));
        self.told.write(response.headers_mut());
        response.map(|body| GateBody::own(body, slots))
    }
}

#[inline(never)]
fn settle<R>((gate, rulings): (Gate, Rulings), response: &Response<R>) -> Option<Box<HeldSlots>> {
    let slots = rulings.settle(&gate, &HttpReply::of(response));
    (!slots.is_empty()).then(|| Box::new(slots))
}

impl<S, B> LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) fn asking(asking: Asking, gate: Gate, service: S, request: Request<B>) -> Self {
        let before = Before::Asking(Box::new(Waiting { asking, gate, service, request }));
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
                Before::Asking(waiting) => match waiting.poll(context) {
                    Turn::NotYet(waiting) => {
                        *this.before = Before::Asking(waiting);
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
        let Poll::Ready(rulings) = Pin::new(&mut self.asking).poll(context) else {
            return Turn::NotYet(self);
        };
        let Self { gate, mut service, request, .. } = *self;
        let verdict = gate.verdict(&rulings);
        if !verdict.is_admitted() {
            return Turn::Refuse(Wire::of(&request).answer(&gate, &verdict));
        }
        let after = After::of(&gate, rulings);
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
            Before::Asking(_) => "LimitFuture(asking)",
            Before::Refused(_) => "LimitFuture(refused)",
        })
    }
}
