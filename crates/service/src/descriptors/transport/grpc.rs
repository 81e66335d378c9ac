//! gRPC: `envoy.service.ratelimit.v3.RateLimitService`, with health and reflection beside it.
//!
//! It is tonic's code for the protocol on hyper's for HTTP/2. Which service is asked is read off the path, and that of limits is
//! looked for first: nothing else stands between a connection and a decision.

use super::{GrpcHealth, MAX_MESSAGE_SIZE, ServingState, convert};
use crate::descriptors::{Decide, DecisionError, DomainRequest};
use http::Request;
use hyper::{body::Incoming, service};
use std::{convert::Infallible, fmt, future::Future, sync::Arc, time::Duration};
use tidegate_http_server::{Accept, Authorization, BoundListener, HttpServer, Listener, StartupError};
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
pub struct GrpcServer<D> {
    rate_limit: RateLimitServiceServer<RateLimitHandler<D>>,
    authorization: Arc<Authorization>,
    health: GrpcHealth,
    other_services: Arc<[GrpcService]>,
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

impl<D: Decide> GrpcServer<D> {
    /// Asks this about every request. Clients are told that it serves once [`health`](Self::health) says so.
    pub async fn new(decider: D) -> Self {
        let health = GrpcHealth::new();
        health.set(ServingState::No).await;
        let limits = RateLimitServiceServer::new(RateLimitHandler { decider })
            .max_decoding_message_size(MAX_MESSAGE_SIZE);
        let others = [Some(GrpcService::new(HealthServer::new(HealthService::from_health_reporter(
            health.reporter(),
        ))))]
        .into_iter()
        .chain(reflection_services())
        .flatten();
        Self { rate_limit: limits, authorization: Arc::default(), other_services: others.collect(), health }
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
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), StartupError> {
        self.serve_listener(listener.into_listener()?, settings, shutdown).await;
        Ok(())
    }

    pub(crate) async fn serve_listener<L: Accept>(
        self,
        listener: Listener<L>,
        settings: GrpcSettings,
        shutdown: impl Future<Output = ()>,
    ) {
        let health = self.health();
        let shutdown = async {
            shutdown.await;
            health.set(ServingState::No).await;
        };
        let GrpcSettings { max_connection_age, drain_timeout } = settings;
        HttpServer::grpc(self, max_connection_age, drain_timeout).serve_until(listener, shutdown).await;
    }
}

impl<D: Decide> service::Service<Request<Incoming>> for GrpcServer<D> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = GrpcFuture;

    fn call(&self, request: Request<Incoming>) -> GrpcFuture {
        let path = request.uri().path().trim_start_matches('/');
        let service = path.split('/').next().unwrap_or_default();
        if service == <RateLimitServiceServer<RateLimitHandler<D>> as NamedService>::NAME {
            return match self.authorization.authenticate(request.headers()) {
                Ok(_) => self.rate_limit.clone().call(request),
                Err(error) => Box::pin(async { Ok(Status::unauthenticated(error.detail).into_http()) }),
            };
        }
        match self.other_services.iter().find(|other| other.name == service) {
            Some(other) => (other.call)(request),
            None => {
                let status = Status::unimplemented(format!("{} is not here", truncate(path)));
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}

impl<D> Clone for GrpcServer<D> {
    fn clone(&self) -> Self {
        Self {
            rate_limit: self.rate_limit.clone(),
            authorization: self.authorization.clone(),
            health: self.health.clone(),
            other_services: self.other_services.clone(),
        }
    }
}

impl<D> fmt::Debug for GrpcServer<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrpcServer").field("health", &self.health).finish_non_exhaustive()
    }
}

type GrpcFuture = BoxFuture<http::Response<Body>, Infallible>;

/// A service that is asked rarely.
struct GrpcService {
    name: &'static str,
    call: Box<dyn Fn(Request<Incoming>) -> GrpcFuture + Send + Sync>,
}

impl GrpcService {
    fn new<S>(service: S) -> Self
    where
        S: Service<Request<Incoming>, Future = GrpcFuture> + NamedService + Clone + Send + Sync + 'static,
    {
        Self { name: S::NAME, call: Box::new(move |request| service.clone().call(request)) }
    }
}

/// Those that tell what is here: tools ask the old one, too.
fn reflection_services() -> [Option<GrpcService>; 2] {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // Limits hold without it.
    let log_error = |error: &_| tracing::error!(%error, "the service cannot describe itself");
    [
        builder().build_v1().inspect_err(log_error).ok().map(GrpcService::new),
        builder().build_v1alpha().inspect_err(log_error).ok().map(GrpcService::new),
    ]
}

/// The service itself.
struct RateLimitHandler<D> {
    decider: D,
}

#[tonic::async_trait]
impl<D: Decide> RateLimitService for RateLimitHandler<D> {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let deadline =
            request.metadata().get("grpc-timeout").and_then(|value| parse_grpc_timeout(value.as_bytes()));
        let decoded = convert::decode_request(request.into_inner()).map_err(|fault| to_status(&fault))?;
        let verdict = self
            .decider
            .decide(DomainRequest { deadline, ..decoded })
            .await
            .map_err(|fault| to_status(&fault))?;
        Ok(Response::new(convert::encode_response(verdict)))
    }
}

/// How long a client waits, as `grpc-timeout` says it: up to eight digits and a unit.
fn parse_grpc_timeout(value: &[u8]) -> Option<Duration> {
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
fn to_status(error: &DecisionError) -> Status {
    let message = truncate(&error.to_string()).to_owned();
    match error {
        DecisionError::Invalid(_) => Status::invalid_argument(message),
        DecisionError::NoConfiguration | DecisionError::Unavailable(_) => Status::unavailable(message),
    }
}

/// Signs of a text that are told: it travels in a header.
const MAX_STATUS_MESSAGE_LEN: usize = 1_024;

fn truncate(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_STATUS_MESSAGE_LEN)]
}

#[cfg(test)]
mod tests {
    use super::parse_grpc_timeout;
    use std::time::Duration;

    #[test]
    fn grpc_timeout_is_parsed_in_every_unit() {
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
            assert_eq!(parse_grpc_timeout(value.as_bytes()), expected, "{value}");
        }
    }
}
