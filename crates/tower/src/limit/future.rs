//! The answer of a service behind a gate.

use super::{
    answer::{Refusal, Wire, with_body},
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
        Calling { #[pin] call: F, held: Held, told: Told },
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

/// What is settled or given back with the answer; most requests have nothing of the kind.
#[derive(Debug, Default)]
pub(super) struct Held(Option<Box<(Gate, Rulings)>>);

impl Held {
    #[inline]
    pub(super) fn of(gate: &Gate, rulings: Rulings) -> Self {
        match rulings.holds_anything() {
            true => Self(Some(Box::new((gate.clone(), rulings)))),
            false => Self(None),
        }
    }

    #[inline]
    fn settle<R>(&mut self, response: &Response<R>) -> Option<HeldSlots> {
        let (gate, rulings) = *self.0.take()?;
        Some(rulings.settle(&gate, &HttpReply::of(response))).filter(|slots| !slots.is_empty())
    }
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
    pub(super) fn calling(call: S::Future, held: Held, told: Told) -> Self {
        Self { state: State::Calling { call, held, told } }
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
        loop {
            let next = match state.as_mut().project() {
                StateProj::Calling { call, held, told } => {
                    let mut response = ready!(call.poll(context))?;
                    let slots = held.settle(&response);
                    std::mem::replace(told, Told::Nothing).write(response.headers_mut());
                    return Poll::Ready(Ok(response.map(|body| GateBody::own(body, slots))));
                }
                StateProj::Refused { refusal } => match refusal.take() {
                    Some(refusal) => return Poll::Ready(Ok(with_body(refusal))),
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
        let told = Told::of(&gate, &verdict);
        let held = Held::of(&gate, rulings);
        State::Calling { call: service.call(request), held, told }
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
