//! A service behind a door.

use crate::{
    head::RequestHead,
    held::{Entered, HeldBody, HeldFuture, Said, enter, respond},
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
use tidegate_rule::surface::{Door, Guest, Terms};

/// A service that not everybody is let into; see [`AccessMiddleware`](super::AccessMiddleware).
pub struct AccessService<S> {
    inner: S,
    door: Door,
    terms: Arc<Terms>,
}

impl<S> AccessService<S> {
    pub(super) fn new(inner: S, door: Door, terms: Arc<Terms>) -> Self {
        Self { inner, door, terms }
    }
}

impl<S, B> Service<ServiceRequest> for AccessService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error>,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Entered<Guest>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let knocked = self.door.knock(&RequestHead::of(&request));
        let said = match knocked {
            Ok(guest) => enter(&self.terms, request, guest),
            Err(barred) => Said::Answer(respond(request, barred.answer)),
        };
        HeldFuture::now(&self.inner, said)
    }
}

impl<S> fmt::Debug for AccessService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessService").field(&self.door).finish()
    }
}
