//! Which gate.

use super::service::LimitTransformService;
use crate::permit::PermitMessageBody;
use actix_web::{
    Error,
    body::MessageBody,
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use std::future::{Ready, ready};
use tidegate_rule::Gate;

/// Puts a gate in front of an application, a scope or a resource.
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
/// Make the gate outside of the closure, as here: actix-web runs the closure once for each worker, and clones of a gate are the
/// same gate. So neither workers nor connections multiply a limit.
///
/// | a request | pays | gets |
/// |---|---|---|
/// | that is let through | its cost, settled with the answer | the service's answer, and headers that tell what is left |
/// | that is refused | nothing | 429 with `Retry-After`, 503 if its store is away, or what the gate's function says |
/// | that is dropped while it waits for its turn or for a store | nothing | |
/// | that is dropped while it is served | what was taken; its slots are given back | |
///
/// The gate is asked before the body is read. Over HTTP/1.1, a connection on which a refused body is still to come may be closed
/// after the answer; and who asks by `Expect: 100-continue` is told to go on by actix-web itself, before any middleware runs.
///
/// Slots of a quota such as `3 at once` are held until the body of the answer has been sent, or was dropped because the client
/// went away.
///
/// An error of a handler is an answer like any other. An error of middleware further inside counts as the answer that it becomes,
/// but gets no headers: actix-web makes that answer later.
#[derive(Clone, Debug)]
pub struct LimitMiddleware {
    gate: Gate,
}

impl LimitMiddleware {
    /// Asks this gate; a single `RequestLimit` is one.
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
