//! Circuit breakers, adaptive limits and throttles.
//!
//! ```text
//!   request ──▶ guard ──permit──▶ inner ──▶ head ──▶ body
//!                 │                           └─ or ──┴──▶ outcome
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

/// Protects a service with a guard: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or a custom
/// one.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::{GuardMiddleware, RequestGuard, InFlightEnd};
/// use tidegate_core::Micros;
/// use tidegate_overload::{AdaptiveLimit, adaptive::LatencyTarget};
///
/// // As many requests in flight as the latency target allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(LatencyTarget::new(Micros::from_millis(250))?)?);
/// let guard = RequestGuard::new(limit).name("api").in_flight_end(InFlightEnd::Body);
/// let app = move || actix_web::App::new().wrap(GuardMiddleware::new(guard.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A rejected request gets 503 and `Retry-After`, and the service is not called. The guard ignores cancelled calls.
/// Create the guard outside of the factory closure; otherwise each worker has its own.
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
        let permit = self.try_acquire(&ActixRequestHead::new(&request));
        PermitResponseFuture::immediate(&**inner, admit_or_reject(self.options(), request, permit))
    }
}
