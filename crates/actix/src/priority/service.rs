//! A service that serves the important first.

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
use tidegate_overload::{Pass, PriorityLimit};
use tidegate_rule::surface::RequestPriority;

/// A service that sheds load, the least important first; see [`PriorityMiddleware`](super::PriorityMiddleware).
pub struct PriorityService<S> {
    inner: S,
    priority: RequestPriority,
}

impl<S> PriorityService<S> {
    pub(super) fn new(inner: S, priority: RequestPriority) -> Self {
        Self { inner, priority }
    }
}

impl<S, B> Service<ServiceRequest> for PriorityService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Entered<Pass<Arc<PriorityLimit>>>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let pass = self.priority.try_pass(&RequestHead::of(&request));
        HeldFuture::now(&self.inner, say(self.priority.terms(), request, pass))
    }
}

impl<S> fmt::Debug for PriorityService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityService").field(&self.priority).finish()
    }
}
