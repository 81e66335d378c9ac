//! A service that serves the important first.

use super::transform::ArrivalOf;
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
use tidegate_engine::{Cause, Pass, PriorityLimit};
use tidegate_rule::surface::Terms;

/// A service that sheds load, the least important first; see [`PriorityMiddleware`](super::PriorityMiddleware).
pub struct PriorityService<S> {
    inner: S,
    limit: Arc<PriorityLimit>,
    arrival: Arc<ArrivalOf>,
    terms: Arc<Terms>,
}

impl<S> PriorityService<S> {
    pub(super) fn new(
        inner: S,
        limit: Arc<PriorityLimit>,
        arrival: Arc<ArrivalOf>,
        terms: Arc<Terms>,
    ) -> Self {
        Self { inner, limit, arrival, terms }
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
        let arrival = (self.arrival)(&RequestHead::of(&request), &self.limit);
        let pass = self.limit.try_pass_owned(arrival).map_err(Cause::from);
        HeldFuture::now(&self.inner, say(&self.terms, request, pass))
    }
}

impl<S> fmt::Debug for PriorityService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PriorityService").field(&self.limit).field(&self.terms).finish()
    }
}
