//! A service that serves the important first.

use super::layer::ArrivalOf;
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
use tidegate_engine::{Pass, PriorityLimit};
use tidegate_rule::surface::Terms;
use tower_service::Service;

/// A service that sheds load, the least important first; see [`PriorityLayer`](super::PriorityLayer).
#[derive(Clone)]
pub struct Prioritised<S> {
    inner: S,
    limit: Arc<PriorityLimit>,
    arrival: Arc<ArrivalOf>,
    terms: Arc<Terms>,
}

impl<S> Prioritised<S> {
    pub(super) fn new(
        inner: S,
        limit: Arc<PriorityLimit>,
        arrival: Arc<ArrivalOf>,
        terms: Arc<Terms>,
    ) -> Self {
        Self { inner, limit, arrival, terms }
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
        let arrival = (self.arrival)(&HttpHead::of(&request), &self.limit);
        match self.limit.try_pass_owned(arrival) {
            Ok(pass) => HeldFuture::serving(self.inner.call(request), pass, self.terms.clone()),
            Err(rejection) => HeldFuture::answered(refuse(&self.terms, Wire::of(&request), rejection.into())),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for Prioritised<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prioritised")
            .field("inner", &self.inner)
            .field("limit", &self.terms)
            .finish_non_exhaustive()
    }
}
