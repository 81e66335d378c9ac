//! A service that not everybody is let into.

use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_rule::surface::{Guest, RequestAccess};
use tower_service::Service;

/// A service that not everybody is let into; see [`AccessLayer`](super::AccessLayer).
#[derive(Clone, Debug)]
pub struct Controlled<S> {
    inner: S,
    access: Arc<RequestAccess>,
}

impl<S> Controlled<S> {
    pub(super) fn new(inner: S, access: Arc<RequestAccess>) -> Self {
        Self { inner, access }
    }
}

impl<S, B, R> Service<Request<B>> for Controlled<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<HeldBody<R>>;
    type Error = S::Error;
    type Future = HeldFuture<S::Future, Guest>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.access.knock(&HttpHead::of(&request)) {
            Ok(guest) => HeldFuture::serving(self.inner.call(request), guest, self.access.terms().clone()),
            Err(barred) => {
                let wire = Wire::of(&request);
                HeldFuture::answered(wire.respond(barred.answer, barred.reason, barred.retry_after))
            }
        }
    }
}
