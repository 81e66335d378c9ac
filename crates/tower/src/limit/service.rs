//! A service behind a gate.

use super::{
    answer::Wire,
    future::{After, LimitFuture},
    headers::Told,
};
use crate::{GateBody, HttpHead, head};
use http::{Request, Response};
use std::{
    mem,
    task::{Context, Poll},
};
use tidegate_rule::{Asked, Gate, Quick, Rulings, request::Address};
use tower_service::Service;

/// A service behind a gate; see [`LimitLayer`](super::LimitLayer).
#[derive(Clone, Debug)]
pub struct Limit<S> {
    gate: Gate,
    inner: S,
}

impl<S> Limit<S> {
    /// This service behind this gate.
    pub fn new(gate: impl Into<Gate>, inner: S) -> Self {
        Self { gate: gate.into(), inner }
    }

    /// The service.
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, R> Service<Request<B>> for Limit<S>
where
    S: Service<Request<B>, Response = Response<R>> + Clone,
{
    type Response = Response<GateBody<R>>;
    type Error = S::Error;
    type Future = LimitFuture<S, B>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        // A request is large. It is moved once as long as nobody else sees it, and so whoever else wants it is given it.
        let peer = self.gate.peer(|| head::peer(request.extensions()));
        match peer.map(|peer| ask_by_peer(&self.gate, peer)) {
            Some(Quick::Admitted(told)) => {
                LimitFuture::calling(self.inner.call(request), After::telling(told))
            }
            Some(Quick::Refused(rulings)) => self.refused(&rulings, request),
            Some(Quick::Undecided) | None => self.call_by_head(request),
        }
    }
}

/// Kept apart, so that the numbers stay in its registers, and what comes back fits into two.
#[inline(never)]
fn ask_by_peer(gate: &Gate, peer: Address) -> Quick<Told> {
    gate.ask_by_peer(peer, |ruling| Told::of_one(gate, ruling))
}

impl<S> Limit<S> {
    #[inline(never)]
    fn call_by_head<B>(&mut self, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        let gate = &self.gate;
        match gate.ask_quickly(&HttpHead::of(&request), |ruling| Told::of_one(gate, ruling)) {
            Quick::Admitted(told) => LimitFuture::calling(self.inner.call(request), After::telling(told)),
            Quick::Refused(rulings) => self.refused(&rulings, request),
            Quick::Undecided => self.call_at_length(request),
        }
    }

    #[inline(never)]
    fn call_at_length<B>(&mut self, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>> + Clone,
    {
        let rulings = match self.gate.ask_at_length(&HttpHead::of(&request)) {
            Asked::Now(rulings) => rulings,
            Asked::Later(asking) => {
                // Only the service that was found ready may be called, however much later.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                return LimitFuture::asking(asking, self.gate.clone(), ready, request);
            }
        };
        if !self.gate.verdict(&rulings).is_admitted() {
            return self.refused(&rulings, request);
        }
        let after = After::of(&self.gate, rulings);
        LimitFuture::calling(self.inner.call(request), after)
    }

    #[cold]
    fn refused<B>(&self, rulings: &Rulings, request: Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        let wire = Wire::of(&request);
        drop(request);
        LimitFuture::refused(wire.answer(&self.gate, &self.gate.verdict(rulings)))
    }
}
