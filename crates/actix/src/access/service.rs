//! A service that not everybody is let into.

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
    task::{Context, Poll},
};
use tidegate_rule::surface::{Guest, RequestAccess};

/// A service that not everybody is let into; see [`AccessMiddleware`](super::AccessMiddleware).
pub struct AccessService<S> {
    inner: S,
    access: RequestAccess,
}

impl<S> AccessService<S> {
    pub(super) fn new(inner: S, access: RequestAccess) -> Self {
        Self { inner, access }
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
        let knocked = self.access.knock(&RequestHead::of(&request));
        let said = match knocked {
            Ok(guest) => enter(self.access.terms(), request, guest),
            Err(barred) => Said::Answer(respond(request, barred.answer)),
        };
        HeldFuture::now(&self.inner, said)
    }
}

impl<S> fmt::Debug for AccessService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessService").field(&self.access).finish()
    }
}
