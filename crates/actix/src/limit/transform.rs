//! The transform of a gate.

use super::service::LimitTransformService;
use crate::permit::PermitMessageBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::Gate;

/// Limits requests to an application, a scope or a resource by a gate.
///
/// ```no_run
/// use actix_web::{App, HttpServer, web};
/// use tidegate_actix::LimitMiddleware;
/// use tidegate_rule::{RuleConfig, Gate, RequestLimit, Rules, request::key};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let rule = Rules::global().declare(RuleConfig::new("per-client").quota("100/min")?)?;
/// let gate = Gate::from(RequestLimit::new(rule).key(key::peer()));
/// HttpServer::new(move || App::new().wrap(LimitMiddleware::new(gate.clone())).route("/", web::get().to(|| async { "hello" })))
///     .bind(("127.0.0.1", 8080))?
///     .run()
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// Create the gate outside of the closure, as here: actix-web runs the closure once per worker, and clones of a gate
/// share its counters. So neither workers nor connections multiply a limit.
///
/// | request | is charged | response |
/// |---|---|---|
/// | admitted | its cost, settled with the response | that of the service, with rate limit headers |
/// | denied | nothing | 429 with `Retry-After`, 503 if the store is unavailable, or a custom rejection |
/// | cancelled while it waits for a quota or a store | nothing | |
/// | cancelled while it is served | the reserved cost; its slots are released | |
///
/// The gate is checked before the body is read. Over HTTP/1.1, the connection may be closed after a rejection if the
/// body has not been received. actix-web itself responds to `Expect: 100-continue` before any middleware runs.
///
/// Slots of a quota such as `3 at once` are in use until the response body has been sent, or is dropped because the client
/// disconnected.
///
/// An error of a handler is a response like any other. An error of inner middleware counts as the response that it becomes,
/// but gets no headers, because actix-web creates that response later.
#[derive(Clone, Debug)]
pub struct LimitMiddleware {
    gate: Gate,
}

impl LimitMiddleware {
    /// Creates middleware with a gate or a single `RequestLimit`.
    pub fn new(gate: impl Into<Gate>) -> Self {
        Self { gate: gate.into() }
    }
}

impl<S, B> Transform<S, ServiceRequest> for LimitMiddleware
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>, Error = Error> + 'static,
    B: MessageBody + 'static,
{
    type Response = ServiceResponse<PermitMessageBody<B>>;
    type Error = Error;
    type Transform = LimitTransformService<S>;
    type InitError = ();
    type Future = Ready<Result<LimitTransformService<S>, ()>>;

    fn new_transform(&self, inner: S) -> Self::Future {
        ready(Ok(LimitTransformService::new(inner, self.gate.clone())))
    }
}
