//! Provides the context of a request while its service runs.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
};
use http::Request;
use std::{
    pin::Pin,
    task::{Context, Poll},
};
use tidegate_rule::middleware::ContextExtractor;
use tower_service::Service;

/// Determines the client address and the user of a request, and provides them to inner layers and to attributes with
/// `key = ip` and `key = user`.
///
/// ```
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::{ContextLayer, ContextExtractor};
///
/// let context = ContextExtractor::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let layer = ContextLayer::new(context);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`RequestContext`] is available in the future of the service and in the extensions of the request. It is not available in the
/// response body and in spawned tasks; use [`RequestContext::scope`] there.
///
/// [`RequestContext`]: tidegate_rule::RequestContext
/// [`RequestContext::scope`]: tidegate_rule::RequestContext::scope
///
/// The default has the peer address of the connection, and no user.
pub type ContextLayer = MiddlewareLayer<ContextExtractor>;

impl<S, B> Service<Request<B>> for MiddlewareService<S, ContextExtractor>
where
    S: Service<Request<B>, Future: Send + 'static>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ContextFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let context = self.settings.extract(&TowerRequestHead::new(&request));
        request.extensions_mut().insert(context.clone());
        // Some services do their work in `call`, before the future is polled.
        let inner = context.clone().scope_blocking(|| self.inner.call(request));
        Box::pin(context.scope(inner))
    }
}

/// A response future with a request context.
pub type ContextFuture<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;
