//! A service behind a door.

use super::{
    transform::Door,
    visitor::{Guest, Visitor},
};
use crate::{
    head::RequestHead,
    held::{Entered, HeldBody, HeldFuture, Said, Terms, respond},
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
use tidegate_engine::{Stance, Standing};

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
        let visitor = self.door.visitor(&RequestHead::of(&request));
        let said = match self.standing(&visitor) {
            Standing::Allowed | Standing::Unlisted => {
                let guest = Guest { visitor, control: self.door.control.clone() };
                self.terms.say(request, Ok(guest))
            }
            standing @ (Standing::Denied | Standing::Banned(_)) => {
                Said::Answer(respond(request, (self.door.answer)(standing)))
            }
        };
        HeldFuture::now(&self.inner, said)
    }
}

impl<S> AccessService<S> {
    fn standing(&self, visitor: &Visitor) -> Standing {
        visitor.standing(&self.door.control).unwrap_or(match self.door.unknown {
            Stance::Allow => Standing::Unlisted,
            Stance::Deny => Standing::Denied,
        })
    }
}

impl<S> fmt::Debug for AccessService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AccessService").field(&self.door.control).finish()
    }
}
