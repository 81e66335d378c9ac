//! A rule as an interceptor of tonic.

use crate::head::peer;
use http::HeaderMap;
use std::{any::Any, net::IpAddr};
use tidegate_rule::{
    Facts, Rule,
    request::{Head, Key, KeyValue},
};
use tonic::{Request, Status, service::Interceptor};

/// A rule as an interceptor, for where a layer cannot be used: around a single service of a server, or around a client.
///
/// ```
/// use tidegate_rule::{Declaration, Rules, request::key};
/// use tidegate_tower::RuleInterceptor;
///
/// let rule = Rules::global().rule(Declaration::of("reports").quota("10/min")?)?;
/// let interceptor = RuleInterceptor::new(rule, key::peer());
/// // ReportsServer::with_interceptor(reports, interceptor)
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// Whoever is refused is told `RESOURCE_EXHAUSTED`, with a `RetryInfo` where it is known when to try again.
///
/// An interceptor sees the metadata, the extensions and the peer, but no path, and it cannot wait without blocking its
/// thread. Counted in memory, a rule answers at once. Counted in a store, it blocks until that answers, which takes no longer
/// than the store's deadline; and a rule that is declared to wait blocks for that long. Prefer a layer for those.
#[derive(Clone, Debug)]
pub struct RuleInterceptor {
    rule: Rule,
    key: Key,
}

impl RuleInterceptor {
    /// Counts calls for this key. Calls that have none share one.
    pub fn new(rule: Rule, key: Key) -> Self {
        Self { rule, key }
    }
}

impl Interceptor for RuleInterceptor {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let head = CallHead(&request);
        let key = self.key.find(&head).unwrap_or(KeyValue::All);
        self.rule.admit_blocking(&key, 1)?;
        Ok(request)
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
