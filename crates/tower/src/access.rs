//! Access lists and bans in front of a service.

use crate::{
    head::TowerRequestHead,
    middleware::{MiddlewareLayer, MiddlewareService},
    permit::{PermitBody, PermitFuture, ResponseProtocol},
};
use http::{Request, Response};
use http_body::Body;
use std::task::{Context, Poll};
use tidegate_rule::middleware::{AdmittedClient, RequestAccess};
use tower_service::Service;

/// Rejects clients that an access list or a ban denies, and bans clients that are denied too often by the service inside.
///
/// ```
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
/// use tidegate_tower::{AccessLayer, RequestAccess};
///
/// let bans = Bans::builder().rule("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control).trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?);
/// let layer = AccessLayer::new(access.ban_on(|reply| reply.status() == 429));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A rejected request gets 403, in gRPC `PERMISSION_DENIED`, and for a ban `Retry-After` with its remaining time. A request
/// without a known client address is rejected too; see [`RequestAccess::on_unknown`].
pub type AccessLayer = MiddlewareLayer<RequestAccess>;

impl<S, B, R> Service<Request<B>> for MiddlewareService<S, RequestAccess>
where
    S: Service<Request<B>, Response = Response<R>>,
    R: Body,
{
    type Response = Response<PermitBody<R>>;
    type Error = S::Error;
    type Future = PermitFuture<S::Future, AdmittedClient>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        match self.settings.check(&TowerRequestHead::new(&request)) {
            Ok(client) => {
                PermitFuture::forward(self.inner.call(request), client, self.settings.options().clone())
            }
            Err(denied) => {
                let protocol = ResponseProtocol::detect(&request);
                let response = self.settings.response(denied);
                PermitFuture::respond(protocol.respond(response, denied.reason(), denied.retry_after()))
            }
        }
    }
}
