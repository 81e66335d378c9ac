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
        #[pin]
        state: State<S, B, S::Future>,
    }
}

pin_project! {
    #[project = StateProj]
    enum State<S, B, F> {
        Asking { waiting: Option<Box<Waiting<S, B>>> },
        Calling { #[pin] call: F, after: After },
        Refused { refusal: Option<Refusal> },
    }
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
    /// Only to tell what is left.
    #[inline]
    pub(super) fn telling(told: Told) -> Self {
        Self { told, held: None }
    }

    pub(super) fn of(gate: &Gate, rulings: Rulings) -> Self {
        let told = Told::of(gate, &gate.verdict(&rulings));
        let held = rulings.holds_anything().then(|| Box::new((gate.clone(), rulings)));
        Self { told, held }
    }

    /// Settles what was taken, and tells what is left. The body holds the slots of the request.
    #[inline]
    fn happen<R>(&mut self, mut response: Response<R>) -> Response<GateBody<R>> {
        let slots = match self.held.take() {
            Some(held) => settle(*held, &response),
            None => None,
        };
        self.told.write(response.headers_mut());
        let (head, body) = response.into_parts();
        Response::from_parts(head, GateBody::own(body, slots))
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
        let waiting = Some(Box::new(Waiting { asking, gate, service, request }));
        Self { state: State::Asking { waiting } }
    }

    #[inline]
    pub(super) fn calling(call: S::Future, after: After) -> Self {
        Self { state: State::Calling { call, after } }
    }

    pub(super) fn refused(refusal: Refusal) -> Self {
        Self { state: State::Refused { refusal: Some(refusal) } }
    }
}

impl<S, B, R> Future for LimitFuture<S, B>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    type Output = Result<Response<GateBody<R>>, S::Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        if let StateProj::Calling { call, after } = state.as_mut().project() {
            let response = ready!(call.poll(context))?;
            return Poll::Ready(Ok(after.happen(response)));
        }
        poll_apart(state, context)
    }
}

/// For those who were refused, or have something to wait for before their call. Kept apart, so that the others need no room
/// for it.
#[inline(never)]
fn poll_apart<S, B, R>(
    mut state: Pin<&mut State<S, B, S::Future>>,
    context: &mut Context<'_>,
) -> Poll<Result<Response<GateBody<R>>, S::Error>>
where
    S: Service<Request<B>, Response = Response<R>>,
{
    loop {
        let next = match state.as_mut().project() {
            StateProj::Calling { call, after } => {
                let response = ready!(call.poll(context))?;
                return Poll::Ready(Ok(after.happen(response)));
            }
            StateProj::Refused { refusal } => match refusal.take() {
                Some(refusal) => return Poll::Ready(Ok(refusal.map(GateBody::text))),
                // Polled after it was ready, which no caller may do.
                None => return Poll::Pending,
            },
            StateProj::Asking { waiting } => {
                let Some(mut asked) = waiting.take() else { return Poll::Pending };
                match Pin::new(&mut asked.asking).poll(context) {
                    Poll::Ready(rulings) => asked.go(rulings),
                    Poll::Pending => {
                        *waiting = Some(asked);
                        return Poll::Pending;
                    }
                }
            }
        };
        state.set(next);
    }
}

impl<S, B> Waiting<S, B>
where
    S: Service<Request<B>>,
{
    /// Calls the service, or refuses to.
    fn go(self, rulings: Rulings) -> State<S, B, S::Future> {
        let Self { gate, mut service, request, .. } = self;
        let verdict = gate.verdict(&rulings);
        if !verdict.is_admitted() {
            return State::Refused { refusal: Some(Wire::of(&request).answer(&gate, &verdict)) };
        }
        let after = After::of(&gate, rulings);
        State::Calling { call: service.call(request), after }
    }
}

impl<S, B> fmt::Debug for LimitFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.state {
            State::Asking { .. } => "LimitFuture(asking)",
            State::Calling { .. } => "LimitFuture(calling)",
            State::Refused { .. } => "LimitFuture(refused)",
        })
    }
}
