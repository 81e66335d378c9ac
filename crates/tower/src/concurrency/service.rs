//! A service that is only so wide.

use super::future::ConcurrencyFuture;
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
use tidegate_core::Rejection;
use tidegate_engine::Slots;
use tidegate_rule::surface::{Line, Terms};
use tower_service::Service;

/// A service that serves only so many requests at once; see [`ConcurrencyLayer`](super::ConcurrencyLayer).
#[derive(Clone, Debug)]
pub struct Concurrency<S> {
    inner: S,
    slots: Slots,
    line: Line,
    terms: Arc<Terms>,
}

impl<S> Concurrency<S> {
    pub(super) fn new(inner: S, slots: Slots, line: Line, terms: Arc<Terms>) -> Self {
        Self { inner, slots, line, terms }
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
        if let Some(slot) = self.slots.try_take_owned() {
            let served = HeldFuture::serving(self.inner.call(request), slot, self.terms.clone());
            return ConcurrencyFuture::now(served);
        }
        let wire = Wire::of(&request);
        let Some(waiter) = self.line.waiter(&HttpHead::of(&request)) else {
            let refused = refuse(&self.terms, wire, Rejection::Full.into());
            return ConcurrencyFuture::now(HeldFuture::answered(refused));
        };
        // The one that is ready waits; whoever asks next asks its clone.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let (slots, terms) = (self.slots.clone(), self.terms.clone());
        ConcurrencyFuture::waiting(async move {
            match slots.take_owned(waiter).await {
                Ok(slot) => HeldFuture::serving(inner.call(request), slot, terms).await,
                Err(refused) => Ok(refuse(&terms, wire, refused.into()).map(HeldBody::answered)),
            }
        })
    }
}
