//! A gate as an interceptor of tonic.

use crate::{head::peer_address, permit::ResponseProtocol};
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
    Facts, Gate, LimitSelection, RequestLimit, Rule, RunMode, Verdict, request::RequestHead,
};
use tonic::{Request, Status, service::Interceptor};

/// A gate as an interceptor, for where a layer cannot be used: around a single service of a server, or around a client.
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
/// Whoever is refused is told what a layer would tell: `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` where the store is away, with a
/// `RetryInfo` where it is known when to try again.
///
/// An interceptor sees the metadata, the extensions and the peer, but no path and no answer, and tonic calls it on a thread of
/// the runtime, where it must not block. So of what a gate can do,
///
/// - rules are not told apart by routes, but for the method of a generated client, and every call is a `POST`;
/// - a call pays its cost whatever the answer is, as one does that never got any;
/// - slots are not held: a number `at once` is looked at, and given back before the call is made;
/// - it neither waits nor asks a store: a rule that is declared to do so is refused when the interceptor is built. Where
///   settings that come later have a rule wait, it is decided without waiting; where they move it to a store, calls are
///   refused with `UNAVAILABLE`, and an error is logged once.
///
/// Use [`LimitLayer`](crate::LimitLayer) for any of those.
#[derive(Clone, Debug)]
pub struct RuleInterceptor {
    gate: Gate,
    is_store_reported: Arc<AtomicBool>,
}

impl RuleInterceptor {
    /// Shows each call to this gate, or to this one rule. A rule that waits or that is counted in a store is an error.
    pub fn new(gate: impl Into<Gate>) -> Result<Self, BuildError> {
        let gate = gate.into();
        let rules = || gate.limits().iter().map(RequestLimit::rule);
        let problem =
            match (rules().find(|rule| !rule.wait().is_zero()), rules().find(|rule| is_in_store(rule))) {
                (Some(rule), _) => {
                    format!("rule `{}` waits, and an interceptor would block its thread", rule.name())
                }
                (None, Some(rule)) => {
                    format!(
                        "rule `{}` is counted in a store, and an interceptor would block its thread",
                        rule.name()
                    )
                }
                (None, None) => return Ok(Self { gate, is_store_reported: Arc::default() }),
            };
        Err(SettingError::new(problem, BLOCKING_RULE_FIX).into())
    }

    /// What a refused call is answered with.
    #[cold]
    fn reject(&self, verdict: &Verdict) -> Status {
        let stored = self.gate.limits().iter().map(RequestLimit::rule).find(|rule| is_in_store(rule));
        if let Some(rule) = stored
            && !self.is_store_reported.swap(true, Ordering::Relaxed)
        {
            tracing::error!(
                rule = rule.name(),
                fix = BLOCKING_RULE_FIX,
                "an interceptor cannot ask a store; calls are refused"
            );
        }
        let answer = ResponseProtocol::Grpc.reject(&self.gate, verdict);
        let unsaid = || Status::unavailable("the server cannot take this call now");
        Status::from_header_map(answer.headers()).unwrap_or_else(unsaid)
    }
}

const BLOCKING_RULE_FIX: &str = "use `LimitLayer`, as in `Server::builder().layer(LimitLayer::new(gate))`";

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

/// What an interceptor sees of a call.
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

    /// What a generated client notes down: the method without its service, which is in the extensions as well.
    fn route(&self) -> Option<&str> {
        self.0.extensions().get::<tonic::GrpcMethod<'static>>().map(tonic::GrpcMethod::method)
    }

    fn peer(&self) -> Option<IpAddr> {
        peer_address(self.0.extensions())
    }

    fn peer_hint(&self) -> Option<&'static str> {
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

    fn facts(&self) -> Option<&Facts> {
        self.0.extensions().get()
    }
}
