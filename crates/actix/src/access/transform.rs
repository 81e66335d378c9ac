//! A list and bans in front of services.

use super::service::AccessService;
use crate::held::HeldBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::surface::RequestAccess;

/// Keeps out whom a list or a ban keeps out, and bans whoever is denied too often further inside.
///
/// ```
/// use tidegate_actix::{AccessMiddleware, RequestAccess};
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
///
/// let bans = Bans::builder().automatic("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control)
///     .behind(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// let app = move || actix_web::App::new().wrap(AccessMiddleware::new(access.clone()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Whoever is kept out is answered with 403, and a ban says in `Retry-After` when it ends. A request whose sender is not known
/// is kept out too; see [`RequestAccess::unknown`]. Make the list and the bans outside of the closure that makes applications,
/// or each worker has its own.
#[derive(Clone, Debug)]
pub struct AccessMiddleware {
    access: RequestAccess,
}

impl AccessMiddleware {
    /// A middleware with this list and these bans.
    pub fn new(access: impl Into<RequestAccess>) -> Self {
        Self { access: access.into() }
    }
}

impl<S, B> Transform<S, ServiceRequest> for AccessMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<HeldBody<B>>;
    type Error = Error;
    type Transform = AccessService<S>;
    type InitError = ();
    type Future = Ready<Result<AccessService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(AccessService::new(inner, self.access.clone())))
    }
}
