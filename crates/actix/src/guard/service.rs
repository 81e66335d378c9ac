//! A service with a guard in front of it.

use crate::{
    head::RequestHead,
    held::{Entered, HeldBody, HeldFuture, say},
};
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse},
};
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_overload::{Guard, Pass, Settle};
use tidegate_rule::surface::RequestGuard;

/// A service with a guard in front of it; see [`GuardMiddleware`](super::GuardMiddleware).
pub struct GuardService<S, G> {
    inner: S,
    guard: RequestGuard<G>,
}

impl<S, G> GuardService<S, G> {
    pub(super) fn new(inner: S, guard: RequestGuard<G>) -> Self {
        Self { inner, guard }
    }
}

impl<S, B, G> Service<ServiceRequest> for GuardService<S, G>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
    G: Guard + Settle<Entry: 'static> + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Entered<Pass<Arc<G>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let pass = self.guard.try_pass(&RequestHead::of(&request));
        HeldFuture::now(&self.inner, say(self.guard.terms(), request, pass))
    }
}

impl<S, G> fmt::Debug for GuardService<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardService").field(&self.guard).finish()
    }
}
