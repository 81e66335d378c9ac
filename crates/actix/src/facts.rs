//! Facts about a request, available while its service runs.

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
use tidegate_rule::middleware::RequestFacts;

/// Finds out who sent a request, and tells everybody who serves it: attributes with `key = ip` and `key = user` deep below,
/// and middleware further inside.
///
/// ```
/// use tidegate_actix::{FactsMiddleware, RequestFacts};
/// use tidegate_rule::request::TrustedProxies;
///
/// let facts = RequestFacts::new()
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let app = move || actix_web::App::new().wrap(FactsMiddleware::new(facts.clone()));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`Facts`] are around the service's future, and among the extensions of the request. They are not around the body of its
/// answer, nor around tasks that it spawns: put them there by [`Facts::scope`].
///
/// [`Facts`]: tidegate_rule::Facts
/// [`Facts::scope`]: tidegate_rule::Facts::scope
///
/// Of several middlewares the one that is wrapped last runs first, so wrap this one after those that are to know the facts.
///
/// The default knows the address at the other end of the connection, and no user.
pub type FactsMiddleware = Middleware<RequestFacts>;

impl MiddlewareHandler for RequestFacts {
    type Body<B: MessageBody> = B;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        LocalBoxFuture<'static, Result<ServiceResponse<B>, Error>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let facts = self.find(&ActixRequestHead::new(&request));
        request.extensions_mut().insert(facts.clone());
        // Some services do their work before they are polled; they know the facts as well.
        let inner = facts.clone().scope_blocking(|| inner.call(request));
        Box::pin(facts.scope(inner))
    }
}
