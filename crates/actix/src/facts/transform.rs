//! Facts for services.

use super::service::FactsService;
use actix_web::{
    Error,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::surface::RequestFacts;

/// Finds out who sent a request, and tells everybody who serves it: attributes with `key = ip` and `key = user` deep below,
/// and middleware further inside.
///
/// ```
/// use tidegate_actix::{FactsMiddleware, RequestFacts};
/// use tidegate_rule::request::TrustedProxies;
///
/// let facts = RequestFacts::new()
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
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
#[derive(Clone, Debug, Default)]
pub struct FactsMiddleware {
    facts: RequestFacts,
}

impl FactsMiddleware {
    /// A middleware that finds out as this says. The default knows the address at the other end of the connection, and no
    /// user.
    pub fn new(facts: RequestFacts) -> Self {
        Self { facts }
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
        ready(Ok(FactsService::new(inner, self.facts.clone())))
    }
}
