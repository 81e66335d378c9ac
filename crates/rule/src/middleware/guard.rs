//! A guard in front of requests.

use super::{
    classify::classify_client,
    guards::Guards,
    options::{MiddlewareOptions, option_methods},
};
use crate::request::{RequestHead, RequestKey};
use std::{fmt, sync::Arc};
use tidegate_overload::{CallError, CallGuard, CallPermit};

/// A guard in front of requests: a `Breaker`, an `AdaptiveLimit`, a `ClientThrottle`, an `ErrorThrottle`, or one of your own.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings};
/// use tidegate_rule::{request::key, middleware::{Guards, RequestGuard}};
///
/// // A client: one breaker per host.
/// let settings = BreakerSettings::builder().count_window(100).build()?;
/// let breakers = Guards::builder().max_keys(100).build(move || Breaker::new(settings.clone()));
/// let guard = RequestGuard::by_key(breakers, key::host()).for_client_calls();
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// A call is in flight until the head of its response by default; a cancelled one is ignored. Clones share
/// the guard.
pub struct RequestGuard<G> {
    source: GuardSource<G>,
    options: Arc<MiddlewareOptions>,
}

/// The guard of a request.
enum GuardSource<G> {
    Shared(Arc<G>),
    ByKey(Arc<Guards<G>>, RequestKey),
    ByRequest(Arc<ChooseGuard<G>>),
}

type ChooseGuard<G> = dyn Fn(&dyn RequestHead) -> Arc<G> + Send + Sync;

impl<G> RequestGuard<G> {
    /// Creates one guard for all requests.
    pub fn new(guard: Arc<G>) -> Self {
        Self::from_source(GuardSource::Shared(guard))
    }

    /// Creates one guard per key. Requests without a key share a guard.
    pub fn by_key(guards: impl Into<Arc<Guards<G>>>, key: RequestKey) -> Self {
        Self::from_source(GuardSource::ByKey(guards.into(), key))
    }

    /// Selects the guard of each request by a function: that of its tenant, for example.
    pub fn by_request(choose: impl Fn(&dyn RequestHead) -> Arc<G> + Send + Sync + 'static) -> Self {
        Self::from_source(GuardSource::ByRequest(Arc::new(choose)))
    }

    fn from_source(source: GuardSource<G>) -> Self {
        Self { source, options: Arc::new(MiddlewareOptions::new("guard")) }
    }

    option_methods!(classify);

    /// Guards calls to another server: a 429 is a failure too; see [`classify_client`].
    #[must_use]
    pub fn for_client_calls(self) -> Self {
        self.classify(classify_client)
    }

    /// Admits or rejects this request.
    pub fn try_acquire(&self, head: &dyn RequestHead) -> Result<CallPermit<Arc<G>>, CallError>
    where
        G: CallGuard,
    {
        let guard = match &self.source {
            GuardSource::Shared(guard) => guard,
            GuardSource::ByKey(guards, key) => &guards.get(&key.find(head)),
            GuardSource::ByRequest(choose) => &choose(head),
        };
        guard.try_acquire_owned().map_err(CallError::from)
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
            GuardSource::Shared(guard) => GuardSource::Shared(guard.clone()),
            GuardSource::ByKey(guards, key) => GuardSource::ByKey(guards.clone(), key.clone()),
            GuardSource::ByRequest(choose) => GuardSource::ByRequest(choose.clone()),
        };
        Self { source, options: self.options.clone() }
    }
}

impl<G> fmt::Debug for RequestGuard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match &self.source {
            GuardSource::Shared(_) => "shared".to_owned(),
            GuardSource::ByKey(guards, key) => format!("{guards:?} by {key:?}"),
            GuardSource::ByRequest(_) => "by a function".to_owned(),
        };
        f.debug_tuple("RequestGuard").field(&format_args!("{source}")).field(&self.options).finish()
    }
}
