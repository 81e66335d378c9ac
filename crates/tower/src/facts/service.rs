//! A service that knows who it serves.

use crate::head::HttpHead;
use http::Request;
use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_rule::surface::RequestFacts;
use tower_service::Service;

/// A service that knows who it serves; see [`FactsLayer`](super::FactsLayer).
#[derive(Clone)]
pub struct WithFacts<S> {
    inner: S,
    facts: Arc<RequestFacts>,
}

impl<S> WithFacts<S> {
    pub(super) fn new(inner: S, facts: Arc<RequestFacts>) -> Self {
        Self { inner, facts }
    }
}

impl<S, B> Service<Request<B>> for WithFacts<S>
where
    S: Service<Request<B>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = FactsFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let facts = self.facts.find(&HttpHead::of(&request));
        request.extensions_mut().insert(facts.clone());
        // Some services do their work before they are polled; they know the facts as well.
        let inner = facts.clone().scope_blocking(|| self.inner.call(request));
        Box::pin(facts.scope(inner))
    }
}

/// An answer by somebody who knows the facts.
pub type FactsFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl<S: fmt::Debug> fmt::Debug for WithFacts<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithFacts").field("inner", &self.inner).finish_non_exhaustive()
    }
}
