//! A gate as an interceptor of tonic.

use crate::{head::peer, held::Wire};
use http::HeaderMap;
use std::{any::Any, net::IpAddr};
use tidegate_rule::{Facts, Gate, request::Head};
use tonic::{Request, Status, service::Interceptor};

/// A gate as an interceptor, for where a layer cannot be used: around a single service of a server, or around a client.
///
/// ```
/// use tidegate_rule::{Declaration, RequestLimit, request::key};
/// use tidegate_tower::RuleInterceptor;
///
/// let reports = RequestLimit::of(Declaration::of("reports").quota("10/min")?)?.key(key::peer());
/// let interceptor = RuleInterceptor::new(reports);
/// // ReportsServer::with_interceptor(reports, interceptor)
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// Whoever is refused is told what a layer would tell: `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` where the store is away, with a
/// `RetryInfo` where it is known when to try again.
///
/// An interceptor sees the metadata, the extensions and the peer, but no path and no answer, and it cannot wait without
/// blocking its thread. So of what a gate can do,
///
/// - rules are not told apart by routes, but for the method of a generated client, and every call is a `POST`;
/// - a call pays its cost whatever the answer is, as one does that never got any;
/// - slots are not held: a number `at once` is looked at, and given back before the call is made;
/// - counted in memory, it answers at once. Counted in a store, it blocks until that answers, which takes no longer than the
///   store's deadline; and a rule that is declared to wait blocks for that long.
///
/// Prefer a layer for any of those.
#[derive(Clone, Debug)]
pub struct RuleInterceptor {
    gate: Gate,
}

impl RuleInterceptor {
    /// Shows each call to this gate, or to this one rule.
    pub fn new(gate: impl Into<Gate>) -> Self {
        Self { gate: gate.into() }
    }
}

impl Interceptor for RuleInterceptor {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let rulings = self.gate.ask_blocking(&CallHead(&request));
        let verdict = self.gate.verdict(&rulings);
        if verdict.is_admitted() {
            return Ok(request);
        }
        let answer = Wire::Grpc.answer(&self.gate, &verdict);
        let unsaid = || Status::unavailable("the server cannot take this call now");
        Err(Status::from_header_map(answer.headers()).unwrap_or_else(unsaid))
    }
}

/// What an interceptor sees of a call.
struct CallHead<'a>(&'a Request<()>);

impl CallHead<'_> {
    fn headers(&self) -> &HeaderMap {
        self.0.metadata().as_ref()
    }
}

impl Head for CallHead<'_> {
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
        peer(self.0.extensions())
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers().get(name).map(http::HeaderValue::as_bytes)
    }

    fn each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers().get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        Some(self.0.extensions())
    }

    fn facts(&self) -> Option<&Facts> {
        self.0.extensions().get()
    }
}
