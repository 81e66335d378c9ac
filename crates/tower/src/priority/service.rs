//! A service that serves the important first.

use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire, refuse},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_overload::{Pass, PriorityLimit};
use tidegate_rule::surface::RequestPriority;
use tower_service::Service;

/// A service that sheds load, the least important first; see [`PriorityLayer`](super::PriorityLayer).
#[derive(Clone, Debug)]
pub struct Prioritised<S> {
    inner: S,
    priority: RequestPriority,
}

impl<S> Prioritised<S> {
    pub(super) fn new(inner: S, priority: RequestPriority) -> Self {
        Self { inner, priority }
    }
}

impl<S, B, R> Service<Request<B>> for Prioritised<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<HeldBody<R>>;
    type Error = S::Error;
    type Future = HeldFuture<S::Future, Pass<Arc<PriorityLimit>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let terms = self.priority.terms();
        match self.priority.try_pass(&HttpHead::of(&request)) {
            Ok(pass) => HeldFuture::serving(self.inner.call(request), pass, terms.clone()),
            Err(cause) => HeldFuture::answered(refuse(terms, Wire::of(&request), cause)),
        }
    }
}
