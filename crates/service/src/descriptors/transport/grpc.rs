//! gRPC: `envoy.service.ratelimit.v3.RateLimitService`, with health and reflection beside it.
//!
//! tonic implements gRPC, hyper HTTP/2. The path selects the service, and the rate limit service is compared first, so a
//! decision takes the shortest path.

use super::{GrpcHealth, MAX_MESSAGE_SIZE, ServingState, convert};
use crate::{
    descriptors::{Decide, DecisionError, DomainRequest},
    events,
};
use http::Request;
use hyper::{body::Incoming, service};
use std::{convert::Infallible, fmt, future::Future, sync::Arc, time::Duration};
use tidegate_http_server::{Accept, BoundListener, HttpServer, Listener, SharedAuthorization, StartupError};
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

/// The gRPC server of the rate limit service. A clone serves another listener.
pub struct GrpcServer<D> {
    rate_limit: RateLimitServiceServer<RateLimitHandler<D>>,
    authorization: SharedAuthorization,
    health: GrpcHealth,
    other_services: Arc<[GrpcService]>,
}

/// Settings of gRPC connections.
#[derive(Clone, Copy, Debug)]
pub struct GrpcSettings {
    /// The age at which the server closes a connection gracefully, with a jitter of 10%, so that new instances receive
    /// connections.
    pub max_connection_age: Duration,
    /// The timeout of requests in flight at shutdown.
    pub drain_timeout: Duration,
}

impl Default for GrpcSettings {
    fn default() -> Self {
        Self { max_connection_age: Duration::from_secs(24 * 60 * 60), drain_timeout: Duration::from_secs(10) }
    }
}

impl<D: Decide> GrpcServer<D> {
    /// Creates a server that calls `decider` for every request. It reports "not serving" until [`health`](Self::health) is
    /// set.
    pub async fn new(decider: D) -> Self {
        let health = GrpcHealth::new();
        health.set(ServingState::NotServing).await;
        let limits = RateLimitServiceServer::new(RateLimitHandler { decider })
            .max_decoding_message_size(MAX_MESSAGE_SIZE);
        let others = [Some(GrpcService::new(HealthServer::new(HealthService::from_health_reporter(
            health.reporter(),
        ))))]
        .into_iter()
        .chain(reflection_services())
        .flatten();
        Self {
            rate_limit: limits,
            authorization: SharedAuthorization::default(),
            other_services: others.collect(),
            health,
        }
    }

    /// Requires these tokens for decisions. Health and reflection need none.
    #[must_use]
    pub(crate) fn authorization(self, authorization: SharedAuthorization) -> Self {
        Self { authorization, ..self }
    }

    /// The health status that clients see.
    pub fn health(&self) -> GrpcHealth {
        self.health.clone()
    }

    /// Serves connections until `shutdown`. Then health reports "not serving", the listener closes, and connections drain.
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
            health.set(ServingState::NotServing).await;
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
            return match self.authorization.load().authenticate(request.headers()) {
                Ok(_) => self.rate_limit.clone().call(request),
                Err(error) => Box::pin(async { Ok(Status::unauthenticated(error.detail).into_http()) }),
            };
        }
        match self.other_services.iter().find(|other| other.name == service) {
            Some(other) => (other.call)(request),
            None => {
                let status = Status::unimplemented(format!("unknown method {}", truncate(path)));
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

/// A service with few requests, behind a dynamic call.
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

/// The reflection services, also in the version that older tools use.
fn reflection_services() -> [Option<GrpcService>; 2] {
    let builder = || {
        Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    // The rate limit service works without reflection.
    let log_error = |error: &tonic_reflection::server::Error| events::ReflectionUnavailable { error }.emit();
    [
        builder().build_v1().inspect_err(log_error).ok().map(GrpcService::new),
        builder().build_v1alpha().inspect_err(log_error).ok().map(GrpcService::new),
    ]
}

/// The implementation of the rate limit service.
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
        let decoded = convert::decode_request(request.into_inner()).map_err(|error| to_status(&error))?;
        let verdict = self
            .decider
            .decide(DomainRequest { deadline, ..decoded })
            .await
            .map_err(|error| to_status(&error))?;
        Ok(Response::new(convert::encode_response(verdict)))
    }
}

/// Parses `grpc-timeout`: up to eight digits and a unit.
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

/// Maps errors to gRPC statuses. Internal errors are always `UNAVAILABLE`, which Envoy's `failure_mode_deny` handles.
fn to_status(error: &DecisionError) -> Status {
    let message = truncate(&error.to_string()).to_owned();
    match error {
        DecisionError::Invalid(_) => Status::invalid_argument(message),
        DecisionError::NoConfiguration | DecisionError::Unavailable(_) => Status::unavailable(message),
    }
}

/// The maximum length of a status message, which is sent in a header.
const MAX_STATUS_MESSAGE_LEN: usize = 1_024;

fn truncate(text: &str) -> &str {
    // `str::floor_char_boundary` needs Rust 1.91.
    let mut ends = (0..=MAX_STATUS_MESSAGE_LEN.min(text.len())).rev();
    &text[..ends.find(|end| text.is_char_boundary(*end)).unwrap_or_default()]
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
