//! gRPC: `envoy.service.ratelimit.v3.RateLimitService`, with health and reflection beside it.
//!
//! It is tonic's code for the protocol on hyper's for HTTP/2. Which service is asked is read off the path, and that of limits is
//! looked for first: nothing else stands between a connection and a decision.

use super::{GrpcHealth, MOST_MESSAGE, Serving, translate};
use crate::descriptors::{Decide, DescriptorFault, DomainAsk};
use http::Request;
use hyper::{body::Incoming, service};
use std::{convert::Infallible, fmt, future::Future, sync::Arc, time::Duration};
use tidegate_http_server::{Accept, Authorization, BoundListener, Fault, HttpServer, Listener};
use tidegate_proto::rls::{
    FILE_DESCRIPTOR_SET, RateLimitRequest, RateLimitResponse, RateLimitService, RateLimitServiceServer,
};
use tonic::{
    Response, Status,
    body::Body,
    codegen::{BoxFuture, Service},
    server::NamedService,
};
use tonic_health::{pb::health_server::HealthServer, server::HealthService};
use tonic_reflection::server::Builder;

/// The decision service for those who speak gRPC. A clone is the same service, for one more listener.
pub struct GrpcWire<D> {
    limits: RateLimitServiceServer<Limits<D>>,
    authorization: Arc<Authorization>,
    health: GrpcHealth,
    others: Arc<[Other]>,
}

/// Settings of gRPC connections.
#[derive(Clone, Copy, Debug)]
pub struct GrpcSettings {
    /// The age at which clients are asked to reconnect, give or take a tenth, so that new servers get connections.
    pub max_connection_age: Duration,
    /// How long requests in flight may take at shutdown.
    pub drain_timeout: Duration,
}

impl Default for GrpcSettings {
    fn default() -> Self {
        Self { max_connection_age: Duration::from_secs(24 * 60 * 60), drain_timeout: Duration::from_secs(10) }
    }
}

impl<D: Decide> GrpcWire<D> {
    /// Asks this about every request. Clients are told that it serves once [`health`](Self::health) says so.
    pub async fn new(decide: D) -> Self {
        let health = GrpcHealth::new();
        health.set(Serving::No).await;
        let limits = RateLimitServiceServer::new(Limits { decide }).max_decoding_message_size(MOST_MESSAGE);
        let others =
            [Some(Other::of(HealthServer::new(HealthService::from_health_reporter(health.reporter()))))]
                .into_iter()
                .chain(reflections())
                .flatten();
        Self { limits, authorization: Arc::default(), others: others.collect(), health }
    }

    /// Requires these tokens for decisions. Health and reflection need none.
    #[must_use]
    pub(crate) fn authorization(self, authorization: Arc<Authorization>) -> Self {
        Self { authorization, ..self }
    }

    /// What clients are told of whether to ask.
    pub fn health(&self) -> GrpcHealth {
        self.health.clone()
    }

    /// Serves connections until `stop`. Then health reports "not serving", the listener closes, and connections are drained.
    pub async fn serve(
        self,
        listener: BoundListener,
        settings: GrpcSettings,
        stop: impl Future<Output = ()>,
    ) -> Result<(), Fault> {
        self.serve_listener(listener.into_listener()?, settings, stop).await;
        Ok(())
    }

    pub(crate) async fn serve_listener<L: Accept>(
        self,
        listener: Listener<L>,
        settings: GrpcSettings,
        stop: impl Future<Output = ()>,
    ) {
        let health = self.health();
        let stop = async {
            stop.await;
            health.set(Serving::No).await;
        };
        let GrpcSettings { max_connection_age, drain_timeout } = settings;
        HttpServer::grpc(self, max_connection_age, drain_timeout).serve_until(listener, stop).await;
    }
}

impl<D: Decide> service::Service<Request<Incoming>> for GrpcWire<D> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Answering {
        let path = request.uri().path().trim_start_matches('/');
        let asked = path.split('/').next().unwrap_or_default();
        if asked == <RateLimitServiceServer<Limits<D>> as NamedService>::NAME {
            return match self.authorization.caller(request.headers()) {
                Ok(_) => self.limits.clone().call(request),
                Err(error) => Box::pin(async { Ok(Status::unauthenticated(error.detail).into_http()) }),
            };
        }
        match self.others.iter().find(|other| other.name == asked) {
            Some(other) => (other.answer)(request),
            None => {
                let told = Status::unimplemented(format!("{} is not here", shown(path)));
                Box::pin(async move { Ok(told.into_http()) })
            }
        }
    }
}

impl<D> Clone for GrpcWire<D> {
    fn clone(&self) -> Self {
        Self {
            limits: self.limits.clone(),
            authorization: self.authorization.clone(),
            health: self.health.clone(),
            others: self.others.clone(),
        }
    }
}

impl<D> fmt::Debug for GrpcWire<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcWire").field("health", &self.health).finish_non_exhaustive()
    }
}

type Answering = BoxFuture<http::Response<Body>, Infallible>;

/// A service that is asked rarely.
struct Other {
    name: &'static str,
    answer: Box<dyn Fn(Request<Incoming>) -> Answering + Send + Sync>,
}

impl Other {
    fn of<S>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Future = Answering> + NamedService + Clone + Send + Sync + 'static,
    {
        Self { name: S::NAME, answer: Box::new(move |request| service.clone().call(request)) }
    }
}

/// Those that tell what is here: tools ask the old one, too.
fn reflections() -> [Option<Other>; 2] {
    let described = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Limits hold without it.
    let missing = |error: &_| tracing::error!(%error, "the service cannot describe itself");
    [
        described().build_v1().inspect_err(missing).ok().map(Other::of),
        described().build_v1alpha().inspect_err(missing).ok().map(Other::of),
    ]
}

/// The service itself.
struct Limits<D> {
    decide: D,
}

#[tonic::async_trait]
impl<D: Decide> RateLimitService for Limits<D> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let deadline = request.metadata().get("grpc-timeout").and_then(|value| timeout(value.as_bytes()));
        let ask = translate::asked(request.into_inner()).map_err(|fault| status(&fault))?;
        let verdict =
            self.decide.decide(DomainAsk { deadline, ..ask }).await.map_err(|fault| status(&fault))?;
        Ok(Response::new(translate::said(verdict)))
    }
}

/// How long a client waits, as `grpc-timeout` says it: up to eight digits and a unit.
fn timeout(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = std::str::from_utf8(digits).ok()?.parse().ok()?;
    match unit {
        b'H' => Some(Duration::from_secs(number * 3_600)),
        b'M' => Some(Duration::from_secs(number * 60)),
        b'S' => Some(Duration::from_secs(number)),
        b'm' => Some(Duration::from_millis(number)),
        b'u' => Some(Duration::from_micros(number)),
        b'n' => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// `UNAVAILABLE` is what Envoy's `failure_mode_deny` is about, so a fault of ours is always that.
fn status(fault: &DescriptorFault) -> Status {
    let told = shown(&fault.to_string()).to_owned();
    match fault {
        DescriptorFault::Invalid(_) => Status::invalid_argument(told),
        DescriptorFault::NoConfiguration | DescriptorFault::Unavailable(_) => Status::unavailable(told),
    }
}

/// Signs of a text that are told: it travels in a header.
const MOST_TOLD: usize = 1_024;

fn shown(text: &str) -> &str {
    &text[..text.floor_char_boundary(MOST_TOLD)]
}

#[cfg(test)]
mod tests {
    use super::timeout;
    use std::time::Duration;

    #[test]
    fn grpc_timeout_is_read_in_every_unit() {
        let table = [
            ("20m", Some(Duration::from_millis(20))),
            ("2H", Some(Duration::from_secs(7_200))),
            ("3M", Some(Duration::from_secs(180))),
            ("5S", Some(Duration::from_secs(5))),
            ("99999999u", Some(Duration::from_micros(99_999_999))),
            ("7n", Some(Duration::from_nanos(7))),
            ("", None),
            ("m", None),
            ("20", None),
            ("+2m", None),
            ("999999999m", None),
        ];
        for (value, expected) in table {
            assert_eq!(timeout(value.as_bytes()), expected, "{value}");
        }
    }
}
