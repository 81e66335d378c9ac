//! A tonic interceptor that checks a gate.

use crate::{events, head::peer_address, permit::ResponseProtocol};
use http::HeaderMap;
use std::{
    any::Any,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};
use tidegate_core::SettingError;
use tidegate_limiter::BuildError;
use tidegate_rule::{
    Gate, LimitSelection, RequestContext, RequestLimit, Rule, RunMode, Verdict, request::RequestHead,
};
use tonic::{Request, Status, service::Interceptor};

/// A tonic interceptor that checks a gate, for a single service of a server or for a client, where a layer cannot be used.
///
/// ```
/// use tidegate_rule::{RuleConfig, RequestLimit, request::key};
/// use tidegate_tower::RuleInterceptor;
///
/// let reports = RequestLimit::from_config(RuleConfig::new("reports").quota("10/min")?)?.key(key::peer());
/// let interceptor = RuleInterceptor::new(reports)?;
/// // ReportsServer::with_interceptor(reports, interceptor)
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// A rejected call gets the same status as from a layer: `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` if the store is
/// unavailable, with a `RetryInfo` if the retry time is known.
///
/// An interceptor has access to the metadata, the extensions and the peer address, but not to the path and the
/// response, and it must not block. Therefore:
///
/// - rules cannot match routes, except the method of a generated client, and every call is a `POST`;
/// - a call is charged its cost regardless of the response;
/// - a quota such as `3 at once` is checked, but the slot is released before the call is made;
/// - rules that wait or use a store are an error when the interceptor is built. If settings later let a rule wait, the
///   interceptor decides without waiting; if they move it to a store, calls are rejected with `UNAVAILABLE`, and an
///   error is logged once.
///
/// Use [`LimitLayer`](crate::LimitLayer) for any of these.
#[derive(Clone, Debug)]
pub struct RuleInterceptor {
    gate: Gate,
    is_store_reported: Arc<AtomicBool>,
}

impl RuleInterceptor {
    /// Creates an interceptor that checks a gate or a single rule.
    ///
    /// # Errors
    ///
    /// Returns an error if a rule waits or uses a store.
    pub fn new(gate: impl Into<Gate>) -> Result<Self, BuildError> {
        let gate = gate.into();
        let rules = || gate.limits().iter().map(RequestLimit::rule);
        let problem =
            match (rules().find(|rule| !rule.wait().is_zero()), rules().find(|rule| is_in_store(rule))) {
                (Some(rule), _) => {
                    format!("rule `{}` waits, which would block the thread of an interceptor", rule.name())
                }
                (None, Some(rule)) => {
                    format!(
                        "rule `{}` uses a store, which would block the thread of an interceptor",
                        rule.name()
                    )
                }
                (None, None) => return Ok(Self { gate, is_store_reported: Arc::default() }),
            };
        Err(SettingError::new(problem, BLOCKING_RULE_FIX).into())
    }

    /// Returns the status of a rejected call.
    #[cold]
    fn reject(&self, verdict: &Verdict) -> Status {
        let stored = self.gate.limits().iter().map(RequestLimit::rule).find(|rule| is_in_store(rule));
        if let Some(rule) = stored
            && !self.is_store_reported.swap(true, Ordering::Relaxed)
        {
            events::InterceptorRuleInStore { rule: rule.name(), fix: BLOCKING_RULE_FIX }.emit();
        }
        let answer = ResponseProtocol::Grpc.reject(&self.gate, verdict);
        let fallback = || Status::unavailable("the server cannot take this call now");
        Status::from_header_map(answer.headers()).unwrap_or_else(fallback)
    }
}

const BLOCKING_RULE_FIX: &str = "use `LimitLayer`: `Server::builder().layer(LimitLayer::new(gate))`";

fn is_in_store(rule: &Rule) -> bool {
    rule.limiter().is_some_and(|limiter| !limiter.is_in_memory())
}

impl Interceptor for RuleInterceptor {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let head = TonicRequestHead(&request);
        let mut verdict = Verdict::default();
        let pending = self.gate.evaluate(&head, LimitSelection::Matching, RunMode::Immediate, &mut verdict);
        match pending.is_none() && verdict.is_admitted() {
            true => Ok(request),
            false => Err(self.reject(&verdict)),
        }
    }
}

/// A call as an interceptor sees it.
struct TonicRequestHead<'a>(&'a Request<()>);

impl TonicRequestHead<'_> {
    fn headers(&self) -> &HeaderMap {
        self.0.metadata().as_ref()
    }
}

impl RequestHead for TonicRequestHead<'_> {
    fn method(&self) -> &str {
        "POST"
    }

    fn path(&self) -> &str {
        ""
    }

    fn host(&self) -> Option<&str> {
        None
    }

    /// The method that a generated client puts into the extensions, without its service.
    fn route(&self) -> Option<&str> {
        self.0.extensions().get::<tonic::GrpcMethod<'static>>().map(tonic::GrpcMethod::method)
    }

    fn peer(&self) -> Option<IpAddr> {
        peer_address(self.0.extensions())
    }

    fn missing_peer_fix(&self) -> Option<&'static str> {
        Some(
            "serve with `TcpIncoming`, or insert the peer's `SocketAddr` into the extensions of each request",
        )
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().get(name).map(http::HeaderValue::as_bytes)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        Some(self.0.extensions())
    }

    fn context(&self) -> Option<&RequestContext> {
        self.0.extensions().get()
    }
}
