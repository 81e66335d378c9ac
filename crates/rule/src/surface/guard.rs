//! A guard in front of requests.

use super::{
    guards::Guards,
    judge::called,
    terms::{Terms, with_terms},
};
use crate::request::{Head, Key};
use std::{fmt, sync::Arc};
use tidegate_overload::{Cause, Guard, Pass};

/// A guard in front of requests: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of your own.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings};
/// use tidegate_rule::{request::key, surface::{Guards, RequestGuard}};
///
/// // Acquire client: a breaker for each host.
/// let settings = BreakerSettings::builder().over_calls(100).build()?;
/// let breakers = Guards::builder().at_most(100).build(move || Breaker::new(settings.clone()));
/// let guard = RequestGuard::by_key(breakers, key::host()).for_calls();
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A call is in flight until the head of its answer is there, unless told otherwise; one that is given up is ignored. Clones
/// share the guard.
pub struct RequestGuard<G> {
    source: Source<G>,
    terms: Arc<Terms>,
}

/// Whose guard it is that a request is shown to.
enum Source<G> {
    One(Arc<G>),
    ByKey(Arc<Guards<G>>, Key),
    By(Arc<Choose<G>>),
}

type Choose<G> = dyn Fn(&dyn Head) -> Arc<G> + Send + Sync;

impl<G> RequestGuard<G> {
    /// One guard for all requests.
    pub fn new(guard: Arc<G>) -> Self {
        Self::of(Source::One(guard))
    }

    /// A guard for each key. Requests without one share a guard.
    pub fn by_key(guards: impl Into<Arc<Guards<G>>>, key: Key) -> Self {
        Self::of(Source::ByKey(guards.into(), key))
    }

    /// The guard that is chosen for each request: that of its tenant, say.
    pub fn by(choose: impl Fn(&dyn Head) -> Arc<G> + Send + Sync + 'static) -> Self {
        Self::of(Source::By(Arc::new(choose)))
    }

    fn of(source: Source<G>) -> Self {
        Self { source, terms: Arc::new(Terms::new("guard")) }
    }

    with_terms!(judged);

    /// Stands in front of calls to somebody else: an answer of 429 is a failure too; see [`called`].
    #[must_use]
    pub fn for_calls(self) -> Self {
        self.classify(called)
    }

    /// Lets this request in, or not.
    pub fn try_pass(&self, head: &dyn Head) -> Result<Pass<Arc<G>>, Cause>
    where
        G: Guard,
    {
        let guard = match &self.source {
            Source::One(guard) => guard,
            Source::ByKey(guards, key) => &guards.key(&key.find(head)),
            Source::By(choose) => &choose(head),
        };
        guard.try_pass_owned().map_err(Cause::from)
    }
}

/// One guard for all requests.
impl<G> From<Arc<G>> for RequestGuard<G> {
    fn from(guard: Arc<G>) -> Self {
        Self::new(guard)
    }
}

impl<G> Clone for RequestGuard<G> {
    fn clone(&self) -> Self {
        let source = match &self.source {
            Source::One(guard) => Source::One(guard.clone()),
            Source::ByKey(guards, key) => Source::ByKey(guards.clone(), key.clone()),
            Source::By(choose) => Source::By(choose.clone()),
        };
        Self { source, terms: self.terms.clone() }
    }
}

impl<G> fmt::Debug for RequestGuard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            Source::One(_) => "one for all".to_owned(),
            Source::ByKey(guards, key) => format!("{guards:?} by {key:?}"),
            Source::By(_) => "by a function".to_owned(),
        };
        f.debug_tuple("RequestGuard").field(&format_args!("{source}")).field(&self.terms).finish()
    }
}
