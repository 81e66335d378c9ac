//! Access lists and bans.

use crate::{
    head::ActixRequestHead,
    middleware::{InnerService, Middleware, MiddlewareHandler},
    permit::{MiddlewareDecision, PermitMessageBody, PermitResponseFuture, PermittedRequest, admit, respond},
};
use actix_web::{body::MessageBody, dev::ServiceRequest};
use std::rc::Rc;
use tidegate_rule::middleware::{AdmittedClient, RequestAccess};

/// Rejects clients that an access list or a ban denies, and bans clients that are denied too often by the service inside.
///
/// ```
/// use tidegate_actix::{AccessMiddleware, RequestAccess};
/// use tidegate_access::{AccessControl, Bans};
/// use tidegate_rule::request::TrustedProxies;
///
/// let bans = Bans::builder().rule("10/min for 1h".parse()?).build()?;
/// let control = AccessControl::new("deny 192.0.2.0/24".parse()?, bans);
/// let access = RequestAccess::new(control)
///     .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"])?)
///     .ban_on(|reply| reply.status() == 429);
/// let app = move || actix_web::App::new().wrap(AccessMiddleware::new(access.clone()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A rejected request gets 403, and for a ban `Retry-After` with its remaining time. A request without a known client
/// address is rejected too; see [`RequestAccess::on_unknown`]. Create the list and the bans outside of the factory
/// closure; otherwise each worker has its own.
pub type AccessMiddleware = Middleware<RequestAccess>;

impl MiddlewareHandler for RequestAccess {
    type Body<B: MessageBody> = PermitMessageBody<B>;
    type Future<S: InnerService<B>, B: MessageBody + 'static> =
        PermitResponseFuture<S::Future, B, PermittedRequest<AdmittedClient>>;

    fn call<S: InnerService<B>, B: MessageBody + 'static>(
        &self,
        inner: &Rc<S>,
        request: ServiceRequest,
    ) -> Self::Future<S, B> {
        let access = self.check(&ActixRequestHead::new(&request));
        let decision = match access {
            Ok(client) => admit(self.options(), request, client),
            Err(denied) => MiddlewareDecision::Respond(respond(request, self.response(denied))),
        };
        PermitResponseFuture::immediate(&**inner, decision)
    }
}
