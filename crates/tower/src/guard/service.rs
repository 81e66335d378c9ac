//! A service with a guard in front of it.

use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire, refuse},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_engine::{Guard, Pass, Settle};
use tidegate_rule::surface::RequestGuard;
use tower_service::Service;

/// A service with a guard in front of it; see [`GuardLayer`](super::GuardLayer).
pub struct Guarded<S, G> {
    inner: S,
    guard: RequestGuard<G>,
}

impl<S, G> Guarded<S, G> {
    pub(super) fn new(inner: S, guard: RequestGuard<G>) -> Self {
        Self { inner, guard }
    }
}

impl<S, G, B, R> Service<Request<B>> for Guarded<S, G>
where
    S: Service<Request<B>, Response = Response<R>>,
    G: Guard + Settle<Entry: Send + Sync> + Send + Sync + 'static,
    R: Body,
{
    type Response = Response<HeldBody<R>>;
    type Error = S::Error;
    type Future = HeldFuture<S::Future, Pass<Arc<G>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let terms = self.guard.terms();
        match self.guard.try_pass(&HttpHead::of(&request)) {
            Ok(pass) => HeldFuture::serving(self.inner.call(request), pass, terms.clone()),
            Err(cause) => HeldFuture::answered(refuse(terms, Wire::of(&request), cause)),
        }
    }
}

impl<S: Clone, G> Clone for Guarded<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), guard: self.guard.clone() }
    }
}

impl<S: fmt::Debug, G> fmt::Debug for Guarded<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guarded").field("inner", &self.inner).field("guard", &self.guard).finish()
    }
}
