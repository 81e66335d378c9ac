//! What stands in front of a service, and how it judges.

use super::service::GuardService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    borrow::Cow,
    fmt,
    future::{Ready, ready},
    sync::Arc,
};
use tidegate_core::Report;
use tidegate_engine::{Guard, Settle};
use tidegate_rule::{
    Answer, Limited,
    request::{Head, Key, Reply},
    surface::{GuardSource, Guards, Terms, Until, called},
};

/// Puts a guard in front of a service: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of
/// your own.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_actix::{GuardMiddleware, Until};
/// use tidegate_core::{Micros, adaptive::Anchored};
/// use tidegate_engine::AdaptiveLimit;
///
/// // As much in flight as the promised latency allows, until the bodies are sent.
/// let limit = Arc::new(AdaptiveLimit::new(Anchored::new(Micros::from_millis(250))?)?);
/// let app = move || actix_web::App::new().wrap(GuardMiddleware::new(limit.clone()).named("api").until(Until::Body));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// Whoever is not let in is answered with 503 and `Retry-After`, and the service is not called. A call that is given up is
/// ignored. Make the guard outside of the closure that makes applications, or each worker has its own.
pub struct GuardMiddleware<G> {
    source: GuardSource<G>,
    terms: Terms,
}

impl<G> GuardMiddleware<G> {
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

    /// How an answer counts; as [`crate::served`] says unless told otherwise.
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
        ready(Ok(GuardService::new(inner, self.source.clone(), Arc::new(self.terms.clone()))))
    }
}

impl<G> Clone for GuardMiddleware<G> {
    fn clone(&self) -> Self {
        Self { source: self.source.clone(), terms: self.terms.clone() }
    }
}

impl<G> fmt::Debug for GuardMiddleware<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GuardMiddleware").field(&self.terms).finish()
    }
}
