//! A service behind a door.

use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire},
};
use http::{Request, Response};
use http_body::Body;
use std::{
    fmt,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_rule::surface::{Door, Guest, Terms};
use tower_service::Service;

/// A service that not everybody is let into; see [`AccessLayer`](super::AccessLayer).
#[derive(Clone)]
pub struct Controlled<S> {
    inner: S,
    door: Arc<Door>,
    terms: Arc<Terms>,
}

impl<S> Controlled<S> {
    pub(super) fn new(inner: S, door: Arc<Door>, terms: Arc<Terms>) -> Self {
        Self { inner, door, terms }
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
        match self.door.knock(&HttpHead::of(&request)) {
            Ok(guest) => HeldFuture::serving(self.inner.call(request), guest, self.terms.clone()),
            Err(barred) => {
                let wire = Wire::of(&request);
                HeldFuture::answered(wire.respond(barred.answer, barred.reason, barred.retry_after))
            }
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Controlled<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controlled").field("inner", &self.inner).finish_non_exhaustive()
    }
}
