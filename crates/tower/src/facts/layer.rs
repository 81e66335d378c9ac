//! Facts for services.

use super::service::WithFacts;
use std::sync::Arc;
use tidegate_rule::surface::RequestFacts;
use tower_layer::Layer;

/// Finds out who sent a request, and tells everybody who serves it: attributes with `key = ip` and `key = user` deep below,
/// and layers further inside.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::{FactsLayer, RequestFacts};
///
/// let facts = RequestFacts::new()
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let layer = FactsLayer::new(facts);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`Facts`] are around the service's future, and among the extensions of the request. They are not around the body of its
/// answer, nor around tasks that it spawns: put them there by [`Facts::scope`].
///
/// [`Facts`]: tidegate_rule::Facts
/// [`Facts::scope`]: tidegate_rule::Facts::scope
#[derive(Clone, Debug, Default)]
pub struct FactsLayer {
    facts: Arc<RequestFacts>,
}

impl FactsLayer {
    /// A layer that finds out as this says. The default knows the address at the other end of the connection, and no user.
    pub fn new(facts: RequestFacts) -> Self {
        Self { facts: Arc::new(facts) }
    }
}

impl<S> Layer<S> for FactsLayer {
    type Service = WithFacts<S>;

    fn layer(&self, inner: S) -> WithFacts<S> {
        WithFacts::new(inner, self.facts.clone())
    }
}
