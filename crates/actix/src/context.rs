//! Provides the context of a request while its service runs.

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
};
use actix_web::{
    Error, HttpMessage as _,
    body::MessageBody,
    dev::{ServiceRequest, ServiceResponse},
};
use futures_core::future::LocalBoxFuture;
use std::rc::Rc;
use tidegate_rule::middleware::ContextExtractor;

/// Determines the client address and the user of a request, and provides them to inner middleware and to attributes with
/// `key = ip` and `key = user`.
///
/// ```
/// use tidegate_actix::{ContextMiddleware, ContextExtractor};
/// use tidegate_rule::request::TrustedProxies;
///
/// let context = ContextExtractor::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let app = move || actix_web::App::new().wrap(ContextMiddleware::new(context.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`RequestContext`] is available in the future of the service and in the extensions of the request. It is not available in the
/// response body and in spawned tasks; use [`RequestContext::scope`] there.
///
/// [`RequestContext`]: tidegate_rule::RequestContext
/// [`RequestContext::scope`]: tidegate_rule::RequestContext::scope
///
/// The middleware that is wrapped last runs first, so wrap this one after the middleware that uses the context.
///
/// The default has the peer address of the connection, and no user.
pub type ContextMiddleware = Middleware<ContextExtractor>;

impl MiddlewareHandler for ContextExtractor {
    type Body<B: MessageBody> = B;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        LocalBoxFuture<'static, Result<ServiceResponse<B>, Error>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let context = self.extract(&ActixRequestHead::new(&request));
        request.extensions_mut().insert(context.clone());
        // Some services do their work in `call`, before the future is polled.
        let inner = context.clone().scope_blocking(|| inner.call(request));
        Box::pin(context.scope(inner))
    }
}
