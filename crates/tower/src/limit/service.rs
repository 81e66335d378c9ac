//! A service behind a gate.

use super::{
    answer::Wire,
    future::{Held, LimitFuture},
    headers::Told,
};
use crate::{GateBody, HttpHead};
use http::{Request, Response};
use std::{
    mem,
    task::{Context, Poll},
};
use tidegate_rule::{Asked, Gate};
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
        let rulings = match self.gate.ask(&HttpHead::of(&request)) {
            Asked::Now(rulings) => rulings,
            Asked::Later(asking) => {
                // Only the service that was found ready may be called, however much later.
                let clone = self.inner.clone();
                let ready = mem::replace(&mut self.inner, clone);
                return LimitFuture::asking(asking, self.gate.clone(), ready, request);
            }
        };
        let verdict = self.gate.verdict(&rulings);
        if !verdict.is_admitted() {
            let wire = Wire::of(&request);
            return LimitFuture::refused(wire.answer(&self.gate, &verdict));
        }
        let told = Told::of(&self.gate, &verdict);
        let held = Held::of(&self.gate, rulings);
        LimitFuture::calling(self.inner.call(request), held, told)
    }
}
