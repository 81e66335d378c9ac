//! A service behind a gate.

use super::{
    answer::Wire,
    future::{After, LimitFuture},
    headers::Told,
};
use crate::{GateBody, HttpHead};
use http::{Request, Response};
use std::{
    mem,
    task::{Context, Poll},
};
use tidegate_rule::{Asked, Fields, Gate, Rulings};
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
        if let Some(quick) = self.gate.ask_quickly(&HttpHead::of(&request)) {
            if !quick.is_admitted() {
                return self.refused(&quick.into(), &request);
            }
            let told = match self.gate.told() {
                Fields::None => Told::Nothing,
                _ => Told::of_one(&self.gate, &quick),
            };
            return LimitFuture::calling(self.inner.call(request), After::telling(told));
        }
        self.call_at_length(request)
    }
}

impl<S> Limit<S> {
    /// Kept apart, so that the quick way needs no room for it.
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
            return self.refused(&rulings, &request);
        }
        let after = After::of(&self.gate, rulings);
        LimitFuture::calling(self.inner.call(request), after)
    }

    #[cold]
    fn refused<B>(&self, rulings: &Rulings, request: &Request<B>) -> LimitFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        let verdict = self.gate.verdict(rulings);
        LimitFuture::refused(Wire::of(request).answer(&self.gate, &verdict))
    }
}
