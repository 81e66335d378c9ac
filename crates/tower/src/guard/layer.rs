//! A guard in front of services.

use super::service::Guarded;
use std::fmt;
use tidegate_rule::surface::RequestGuard;
use tower_layer::Layer;

/// Puts a guard in front of a service: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of
/// your own.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::Micros;
/// use tidegate_overload::{BreakerSettings, adaptive::Anchored};
/// use tidegate_overload::{AdaptiveLimit, Breaker};
/// use tidegate_rule::request::key;
/// use tidegate_tower::{GuardLayer, Guards, RequestGuard, Until};
///
/// // A server: as much in flight as the promised latency allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?);
/// let server = GuardLayer::new(RequestGuard::new(limit).named("api").until(Until::Body));
///
/// // A client: a breaker for each host.
/// let settings = BreakerSettings::builder().over_calls(100).build()?;
/// let breakers = Guards::builder().at_most(100).build(move || Breaker::new(settings.clone()));
/// let client = GuardLayer::new(RequestGuard::by_key(breakers, key::host()).for_calls());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Whoever is not let in is answered with 503 and `Retry-After`, in gRPC with `UNAVAILABLE`, and the service is not called.
/// A call that is given up is ignored. All services that are made from one layer share the guard.
pub struct GuardLayer<G> {
    guard: RequestGuard<G>,
}

impl<G> GuardLayer<G> {
    /// A layer with this guard, or with one in an `Arc` for all requests.
    pub fn new(guard: impl Into<RequestGuard<G>>) -> Self {
        Self { guard: guard.into() }
    }
}

impl<G> Clone for GuardLayer<G> {
    fn clone(&self) -> Self {
        Self { guard: self.guard.clone() }
    }
}

impl<S, G> Layer<S> for GuardLayer<G> {
    type Service = Guarded<S, G>;

    fn layer(&self, inner: S) -> Guarded<S, G> {
        Guarded::new(inner, self.guard.clone())
    }
}

impl<G> fmt::Debug for GuardLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardLayer").field(&self.guard).finish()
    }
}
