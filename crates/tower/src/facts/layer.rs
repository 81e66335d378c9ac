//! How to find out who sent a request.

use super::service::WithFacts;
use std::{fmt, sync::Arc};
use tidegate_rule::{
    Facts,
    request::{Head, TrustedProxies},
};
use tower_layer::Layer;

/// Finds out who sent a request, and tells everybody who serves it: attributes with `key = ip` and `key = user` deep below,
/// and layers further inside.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::FactsLayer;
///
/// let layer = FactsLayer::new()
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`Facts`] are around the service's future, and among the extensions of the request. They are not around the body of its
/// answer, nor around tasks that it spawns: put them there by [`Facts::scope`].
#[derive(Clone)]
pub struct FactsLayer {
    finder: Finder,
}

#[derive(Clone)]
pub(super) struct Finder {
    proxies: TrustedProxies,
    user: Option<Arc<UserOf>>,
    others: Vec<Arc<Add>>,
}

type UserOf = dyn Fn(&dyn Head) -> Option<Arc<str>> + Send + Sync;
type Add = dyn Fn(&dyn Head, Facts) -> Facts + Send + Sync;

impl FactsLayer {
    /// Knows the address at the other end of the connection, and no user.
    pub fn new() -> Self {
        Self { finder: Finder { proxies: TrustedProxies::none(), user: None, others: Vec::new() } }
    }

    /// Finds the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(mut self, proxies: TrustedProxies) -> Self {
        self.finder.proxies = proxies;
        self
    }

    /// Finds the user: in what the application has already decoded and checked, such as claims among the extensions.
    #[must_use]
    pub fn user(mut self, find: impl Fn(&dyn Head) -> Option<Arc<str>> + Send + Sync + 'static) -> Self {
        self.finder.user = Some(Arc::new(find));
        self
    }

    /// Adds what a function knows.
    #[must_use]
    pub fn and(mut self, add: impl Fn(&dyn Head, Facts) -> Facts + Send + Sync + 'static) -> Self {
        self.finder.others.push(Arc::new(add));
        self
    }
}

impl Default for FactsLayer {
    fn default() -> Self {
        Self::new()
    }
}

impl Finder {
    pub(super) fn facts(&self, head: &dyn Head) -> Facts {
        let user = self.user.as_ref().and_then(|find| find(head));
        let facts = Facts::found_in(head, &self.proxies, user);
        self.others.iter().fold(facts, |facts, add| add(head, facts))
    }
}

impl<S> Layer<S> for FactsLayer {
    type Service = WithFacts<S>;

    fn layer(&self, inner: S) -> WithFacts<S> {
        WithFacts::new(inner, Arc::new(self.finder.clone()))
    }
}

impl fmt::Debug for FactsLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FactsLayer").field("behind", &self.finder.proxies).finish_non_exhaustive()
    }
}
