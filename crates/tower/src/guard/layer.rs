//! What stands in front of a service, and how it judges.

use super::service::Guarded;
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::Report;
use tidegate_rule::{
    Answer, Limited,
    request::{Head, Key, Reply},
    surface::{GuardSource, Guards, Terms, Until, called},
};
use tower_layer::Layer;

/// Puts a guard in front of a service: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of
/// your own.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_core::{BreakerSettings, Micros, adaptive::Anchored};
/// use tidegate_engine::{AdaptiveLimit, Breaker};
/// use tidegate_rule::request::key;
/// use tidegate_tower::{GuardLayer, Guards, Until};
///
/// // A server: as much in flight as the promised latency allows, until the bodies are sent.
/// let limit = AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?;
/// let server = GuardLayer::new(Arc::new(limit)).named("api").until(Until::Body);
///
/// // A client: a breaker for each host.
/// let settings = BreakerSettings::builder().over_calls(100).build()?;
/// let breakers = Guards::builder().at_most(100).build(move || Breaker::new(settings.clone()));
/// let client = GuardLayer::by_key(breakers, key::host()).for_calls();
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Whoever is not let in is answered with 503 and `Retry-After`, in gRPC with `UNAVAILABLE`, and the service is not called.
/// A call that is given up is ignored. All services that are made from one layer share the guard.
pub struct GuardLayer<G> {
    source: GuardSource<G>,
    terms: Terms,
}

impl<G> GuardLayer<G> {
    /// One guard for all requests.
    pub fn new(guard: Arc<G>) -> Self {
        Self { source: GuardSource::One(guard), terms: Terms::new("guard") }
    }

    /// A guard for each key. Requests without one share a guard.
    pub fn by_key(guards: impl Into<Arc<Guards<G>>>, key: Key) -> Self {
        Self { source: GuardSource::ByKey(guards.into(), key), terms: Terms::new("guard") }
    }

    /// The guard that is chosen for each request: that of its tenant, say.
    pub fn by(choose: impl Fn(&dyn Head) -> Arc<G> + Send + Sync + 'static) -> Self {
        Self { source: GuardSource::By(Arc::new(choose)), terms: Terms::new("guard") }
    }

    /// The name by which it is called in answers.
    #[must_use]
    pub fn named(mut self, name: impl Into<Cow<'static, str>>) -> Self {
        self.terms.name = name.into();
        self
    }

    /// Stands in front of calls to somebody else: an answer of 429 is a failure too; see [`called`].
    #[must_use]
    pub fn for_calls(self) -> Self {
        self.classify(called)
    }

    /// How an answer counts, or an error instead of one (`None`); as [`crate::served`] says unless told otherwise.
    #[must_use]
    pub fn classify(
        mut self,
        classify: impl Fn(Option<&dyn Reply>) -> Report + Send + Sync + 'static,
    ) -> Self {
        self.terms.classify = Arc::new(classify);
        self
    }

    /// Until when a call is in flight; until the head of the answer is there unless told otherwise.
    #[must_use]
    pub fn until(mut self, until: Until) -> Self {
        self.terms.until = until;
        self
    }

    /// What to answer to whoever is not let in.
    #[must_use]
    pub fn answer(mut self, answer: impl Fn(&Limited) -> Answer + Send + Sync + 'static) -> Self {
        self.terms.answer = Arc::new(answer);
        self
    }
}

impl<G> Clone for GuardLayer<G> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), terms: self.terms.clone() }
    }
}

impl<S, G> Layer<S> for GuardLayer<G> {
    type Service = Guarded<S, G>;

    fn layer(&self, inner: S) -> Guarded<S, G> {
        Guarded::new(inner, self.source.clone(), Arc::new(self.terms.clone()))
    }
}

impl<G> fmt::Debug for GuardLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardLayer").field(&self.terms).finish()
    }
}
