//! A guard in front of services.

use super::service::GuardService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    fmt,
    future::{Ready, ready},
};
use tidegate_overload::{Guard, Settle};
use tidegate_rule::surface::RequestGuard;

/// Puts a guard in front of a service: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of
/// your own.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::{GuardMiddleware, RequestGuard, Until};
/// use tidegate_core::Micros;
/// use tidegate_overload::adaptive::Anchored;
/// use tidegate_overload::AdaptiveLimit;
///
/// // As much in flight as the promised latency allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?);
/// let guard = RequestGuard::new(limit).named("api").until(Until::Body);
/// let app = move || actix_web::App::new().wrap(GuardMiddleware::new(guard.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Whoever is not let in is answered with 503 and `Retry-After`, and the service is not called. A call that is given up is
/// ignored. Make the guard outside of the closure that makes applications, or each worker has its own.
pub struct GuardMiddleware<G> {
    guard: RequestGuard<G>,
}

impl<G> GuardMiddleware<G> {
    /// A middleware with this guard, or with one in an `Arc` for all requests.
    pub fn new(guard: impl Into<RequestGuard<G>>) -> Self {
        Self { guard: guard.into() }
    }
}

impl<S, B, G> Transform<S, ServiceRequest> for GuardMiddleware<G>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
    G: Guard + Settle<Entry: 'static> + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = GuardService<S, G>;
    type InitError = ();
    type Future = Ready<Result<GuardService<S, G>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(GuardService::new(inner, self.guard.clone())))
    }
}

impl<G> Clone for GuardMiddleware<G> {
    fn clone(&self) -> Self {
        Self { guard: self.guard.clone() }
    }
}

impl<G> fmt::Debug for GuardMiddleware<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardMiddleware").field(&self.guard).finish()
    }
}
