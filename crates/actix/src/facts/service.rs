//! A service that knows who it serves.

use crate::head::RequestHead;
use actix_web::{
    Error, HttpMessage as _,
    dev::{Service, ServiceRequest},
};
use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_rule::surface::RequestFacts;

/// A service that knows who it serves; see [`FactsMiddleware`](super::FactsMiddleware).
pub struct FactsService<S> {
    inner: S,
    facts: RequestFacts,
}

impl<S> FactsService<S> {
    pub(super) fn new(inner: S, facts: RequestFacts) -> Self {
        Self { inner, facts }
    }
}

impl<S> Service<ServiceRequest> for FactsService<S>
where
    S: Service<ServiceRequest, Error = Error, Future: 'static>,
{
    type Response = S::Response;
    type Error = Error;
    type Future = FactsFuture<S::Response>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let facts = self.facts.find(&RequestHead::of(&request));
        request.extensions_mut().insert(facts.clone());
        // Some services do their work before they are polled; they know the facts as well.
        let inner = facts.clone().scope_blocking(|| self.inner.call(request));
        Box::pin(facts.scope(inner))
    }
}

/// An answer by somebody who knows the facts.
pub type FactsFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>>>>;

impl<S> fmt::Debug for FactsService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FactsService")
    }
}
