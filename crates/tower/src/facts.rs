//! Provides facts about a request while its service runs.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
};
use http::Request;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_rule::middleware::RequestFacts;
use tower_service::Service;

/// Determines the client address and the user of a request, and provides them to inner layers and to attributes with
/// `key = ip` and `key = user`.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::{FactsLayer, RequestFacts};
///
/// let facts = RequestFacts::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let layer = FactsLayer::new(facts);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`Facts`] are available in the future of the service and in the extensions of the request. They are not available in the
/// response body and in spawned tasks; use [`Facts::scope`] there.
///
/// [`Facts`]: tidegate_rule::Facts
/// [`Facts::scope`]: tidegate_rule::Facts::scope
///
/// The default has the peer address of the connection, and no user.
pub type FactsLayer = MiddlewareLayer<RequestFacts>;

impl<S, B> Service<Request<B>> for MiddlewareService<S, RequestFacts>
where
    S: Service<Request<B>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = FactsFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let facts = self.settings.find(&TowerRequestHead::new(&request));
        request.extensions_mut().insert(facts.clone());
        // Some services do their work in `call`, before the future is polled.
        let inner = facts.clone().scope_blocking(|| self.inner.call(request));
        Box::pin(facts.scope(inner))
    }
}

/// A response future with facts.
pub type FactsFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;
