//! How to find out who sent a request.

use super::service::WithFacts;
use std::sync::Arc;
use tidegate_rule::{
    Facts,
    request::{Head, TrustedProxies},
    surface::FactsFinder,
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
#[derive(Clone, Debug, Default)]
pub struct FactsLayer {
    finder: FactsFinder,
}

impl FactsLayer {
    /// Knows the address at the other end of the connection, and no user.
    pub fn new() -> Self {
        Self::default()
    }

    /// Finds the address of the client, as these proxies tell it.
    #[must_use]
    pub fn behind(self, proxies: TrustedProxies) -> Self {
        Self { finder: self.finder.behind(proxies) }
    }

    /// Finds the user: in what the application has already decoded and checked, such as claims among the extensions.
    #[must_use]
    pub fn user(self, find: impl Fn(&dyn Head) -> Option<Arc<str>> + Send + Sync + 'static) -> Self {
        Self { finder: self.finder.user(find) }
    }

    /// Adds what a function knows.
    #[must_use]
    pub fn and(self, add: impl Fn(&dyn Head, Facts) -> Facts + Send + Sync + 'static) -> Self {
        Self { finder: self.finder.and(add) }
    }
}

impl<S> Layer<S> for FactsLayer {
    type Service = WithFacts<S>;

    fn layer(&self, inner: S) -> WithFacts<S> {
        WithFacts::new(inner, Arc::new(self.finder.clone()))
    }
}
