//! How to find out who sent a request.

use super::service::FactsService;
use actix_web::{
    Error,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::{
    future::{Ready, ready},
    sync::Arc,
};
use tidegate_rule::{
    Facts,
    request::{Head, TrustedProxies},
    surface::FactsFinder,
};

/// Finds out who sent a request, and tells everybody who serves it: attributes with `key = ip` and `key = user` deep below,
/// and middleware further inside.
///
/// ```
/// use tidegate_actix::FactsMiddleware;
/// use tidegate_rule::request::TrustedProxies;
///
/// let facts = FactsMiddleware::new()
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
/// let app = move || actix_web::App::new().wrap(facts.clone());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// [`Facts`] are around the service's future, and among the extensions of the request. They are not around the body of its
/// answer, nor around tasks that it spawns: put them there by [`Facts::scope`].
///
/// Of several middlewares the one that is wrapped last runs first, so wrap this one after those that are to know the facts.
#[derive(Clone, Debug, Default)]
pub struct FactsMiddleware {
    finder: FactsFinder,
}

impl FactsMiddleware {
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

impl<S, B> Transform<S, ServiceRequest> for FactsMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: 'static,
{
    type Response = ServiceResponse<B>;
    type Error = Error;
    type Transform = FactsService<S>;
    type InitError = ();
    type Future = Ready<Result<FactsService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(FactsService::new(inner, self.finder.clone())))
    }
}
