//! A service that is only so wide.

use super::future::ConcurrencyFuture;
use crate::{
    head::HttpHead,
    held::{HeldBody, HeldFuture, Wire, refuse},
};
use http::{Request, Response};
use http_body::Body;
use std::task::{Context, Poll};
use tidegate_rule::surface::{RequestSlots, Turn};
use tower_service::Service;

/// A service that serves only so many requests at once; see [`ConcurrencyLayer`](super::ConcurrencyLayer).
#[derive(Clone, Debug)]
pub struct Concurrency<S> {
    inner: S,
    slots: RequestSlots,
}

impl<S> Concurrency<S> {
    pub(super) fn new(inner: S, slots: RequestSlots) -> Self {
        Self { inner, slots }
    }
}

impl<S, B, R> Service<Request<B>> for Concurrency<S>
where
    S: Service<Request<B>, Response = Response<R>, Future: Send> + Clone + Send + 'static,
    B: Send + 'static,
    R: Body,
{
    type Response = Response<HeldBody<R>>;
    type Error = S::Error;
    type Future = ConcurrencyFuture<S::Future, R, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (turn, terms) = (self.slots.turn(&HttpHead::of(&request)), self.slots.terms());
        let line = match turn {
            Turn::Now(Ok(slot)) => {
                let served = HeldFuture::serving(self.inner.call(request), slot, terms.clone());
                return ConcurrencyFuture::now(served);
            }
            Turn::Now(Err(cause)) => {
                let refused = refuse(terms, Wire::of(&request), cause);
                return ConcurrencyFuture::now(HeldFuture::answered(refused));
            }
            Turn::Later(line) => line,
        };
        // The one that is ready waits; whoever asks next asks its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (wire, terms) = (Wire::of(&request), terms.clone());
        ConcurrencyFuture::waiting(async move {
            match line.slot().await {
                Ok(slot) => HeldFuture::serving(inner.call(request), slot, terms).await,
                Err(cause) => Ok(refuse(&terms, wire, cause).map(HeldBody::answered)),
            }
        })
    }
}
