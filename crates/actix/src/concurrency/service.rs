//! A service that is only so wide.

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
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_limiter::Slot;
use tidegate_rule::surface::{RequestSlots, Turn};

/// A service that serves only so many requests at once; see [`ConcurrencyMiddleware`](super::ConcurrencyMiddleware).
pub struct ConcurrencyService<S> {
    /// Shared with those who wait for their turn.
    inner: Rc<S>,
    slots: RequestSlots,
}

impl<S> ConcurrencyService<S> {
    pub(super) fn new(inner: S, slots: RequestSlots) -> Self {
        Self { inner: Rc::new(inner), slots }
    }
}

impl<S, B> Service<ServiceRequest> for ConcurrencyService<S>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Future = HeldFuture<S::Future, B, Entered<Slot>>;

    fn poll_ready(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (turn, terms) = (self.slots.turn(&RequestHead::of(&request)), self.slots.terms());
        match turn {
            Turn::Now(slot) => HeldFuture::now(&*self.inner, say(terms, request, slot)),
            Turn::Later(line) => {
                let terms = terms.clone();
                HeldFuture::later(&self.inner, async move { say(&terms, request, line.slot().await) })
            }
        }
    }
}

impl<S> fmt::Debug for ConcurrencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyService").field(&self.slots).finish()
    }
}
