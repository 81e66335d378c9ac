//! Breakers, adaptive limits and throttles that follow errors, in front of a service.
//!
//! ```text
//!   request ──▶ guard ──pass──▶ inner ──▶ head ──▶ body
//!                 │                         └─ or ──┴──▶ report
//!                 └──rejection──▶ 503, Retry-After
//! ```

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
    permit::{PermitMessageBody, PermitResponseFuture, PermittedRequest, admit_or_reject},
};
use actix_web::{body::MessageBody, dev::ServiceRequest};
use std::{rc::Rc, sync::Arc};
use tidegate_overload::{CallGuard, CallPermit, RecordOutcome};
use tidegate_rule::middleware::RequestGuard;

/// Puts a guard in front of a service: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of
/// your own.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::{GuardMiddleware, RequestGuard, InFlightEnd};
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, adaptive::LatencyTarget};
///
/// // As much in flight as the promised latency allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?);
/// let guard = RequestGuard::new(limit).name("api").in_flight_end(InFlightEnd::Body);
/// let app = move || actix_web::App::new().wrap(GuardMiddleware::new(guard.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A rejected request gets 503 and `Retry-After`, and the service is not called. A call that is given up is
/// ignored. Make the guard outside of the closure that makes applications, or each worker has its own.
pub type GuardMiddleware<G> = Middleware<RequestGuard<G>>;

impl<G: CallGuard + RecordOutcome<Entry: 'static> + 'static> MiddlewareHandler for RequestGuard<G> {
    type Body<B: MessageBody> = PermitMessageBody<B>;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        PermitResponseFuture<S::Future, B, PermittedRequest<CallPermit<Arc<G>>>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let pass = self.try_acquire(&ActixRequestHead::new(&request));
        PermitResponseFuture::immediate(&**inner, admit_or_reject(self.options(), request, pass))
    }
}
