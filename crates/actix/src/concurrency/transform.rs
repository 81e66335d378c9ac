//! So many at once in front of services.

use super::service::ConcurrencyService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::surface::RequestSlots;

/// Lets no more requests into a service at once than there are slots. Each holds its slot until the body of its answer has
/// been sent, or it was given up.
///
/// ```
/// use std::time::Duration;
/// use tidegate_actix::{ConcurrencyMiddleware, RequestSlots};
/// use tidegate_limiter::Slots;
///
/// let slots = Slots::builder().waiting_places(200).build(64)?;
/// let at_once = RequestSlots::new(slots).wait(Duration::from_millis(500));
/// let app = move || actix_web::App::new().wrap(ConcurrencyMiddleware::new(at_once.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// For so many at once of each client, use a rule with a quota such as `3 at once`.
///
/// Whoever finds no slot is answered with 503 and `Retry-After`. Make the slots outside of the closure that makes applications,
/// or each worker has its own.
#[derive(Clone, Debug)]
pub struct ConcurrencyMiddleware {
    slots: RequestSlots,
}

impl ConcurrencyMiddleware {
    /// A middleware with these slots.
    pub fn new(slots: impl Into<RequestSlots>) -> Self {
        Self { slots: slots.into() }
    }
}

impl<S, B> Transform<S, ServiceRequest> for ConcurrencyMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = ConcurrencyService<S>;
    type InitError = ();
    type Future = Ready<Result<ConcurrencyService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(ConcurrencyService::new(inner, self.slots.clone())))
    }
}
