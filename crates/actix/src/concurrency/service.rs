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
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_core::Rejection;
use tidegate_engine::{Cause, Slot, Slots};
use tidegate_rule::surface::{Line, Terms};

/// A service that serves only so many requests at once; see [`ConcurrencyMiddleware`](super::ConcurrencyMiddleware).
pub struct ConcurrencyService<S> {
    /// Shared with those who wait for their turn.
    inner: Rc<S>,
    slots: Slots,
    line: Line,
    terms: Arc<Terms>,
}

impl<S> ConcurrencyService<S> {
    pub(super) fn new(inner: S, slots: Slots, line: Line, terms: Arc<Terms>) -> Self {
        Self { inner: Rc::new(inner), slots, line, terms }
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
        let now = |request, slot| HeldFuture::now(&*self.inner, say(&self.terms, request, slot));
        if let Some(slot) = self.slots.try_take_owned() {
            return now(request, Ok(slot));
        }
        let waiter = self.line.waiter(&RequestHead::of(&request));
        let Some(waiter) = waiter else { return now(request, Err(Rejection::Full.into())) };
        let (slots, terms) = (self.slots.clone(), self.terms.clone());
        HeldFuture::later(&self.inner, async move {
            let slot = slots.take_owned(waiter).await.map_err(Cause::from);
            say(&terms, request, slot)
        })
    }
}

impl<S> fmt::Debug for ConcurrencyService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConcurrencyService").field(&self.slots).field(&self.terms).finish()
    }
}
