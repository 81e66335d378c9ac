//! The rate limit service as a process: the source of its configuration, its listeners and its background tasks.
//!
//! ```text
//!   folder or management server ──on each change──▶ DescriptorService ◀── gRPC, /json
//!                                                         └──▶ pages: /rlconfig, /stats, /metrics
//! ```

use super::{
    ApiToken, DescriptorDirectory, DescriptorService, Endpoint, Environment, GrpcBindAddress, HealthStatus,
    ServerStores, ServiceHealth, StartMode, StatsdSettings, StoreRequirement, debug_page, health_page,
    metrics_page,
    startup::{load_certificate, open_config_source, service_settings},
    statsd::StatsdSender,
    transport::{
        GrpcHealth, GrpcServer, GrpcSettings, JsonHandler, ReservationApi, ServingState, settle_router,
    },
    xds::XdsClient,
};
use crate::events;
use arc_swap::ArcSwap;
use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::Response,
    routing,
};
use futures_util::future::BoxFuture;
use http::StatusCode;
use hyper_util::service::TowerToHyperService;
use std::{
    fmt, fs,
    future::Future,
    net::SocketAddr,
    os::unix::{fs::FileTypeExt, net::UnixListener as UnixSocket},
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tidegate_http_server::{
    Authorization, BoundListener, Certificate, HttpServer, Listener, Operator, Operators, Secret,
    ShutdownSignal, StartupError,
};
use tidegate_limiter::{BuildError, FailureMode};
use tidegate_policy::{
    descriptors::{DescriptorSet, DomainMerge},
    model::Connections,
};
use tokio::{net::UnixListener, sync::watch, time};

/// A rate limit service with bound listeners. A configuration from a folder is loaded already.
pub struct RateLimitServer {
    service: Arc<DescriptorService>,
    health: ServiceHealth,
    config_source: ConfigSource,
    sockets: ServerSockets,
    grpc_settings: GrpcSettings,
    reservations: Arc<ReservationApi>,
    authorization: Arc<Authorization>,
    /// Whether it accepts no connections until a configuration is loaded.
    waits_for_config: bool,
    store_requirement: StoreRequirement,
    statsd: Option<StatsdSettings>,
}

/// The source of the configuration.
pub(super) enum ConfigSource {
    Folder(Box<DescriptorDirectory>),
    Xds(Box<XdsClient>, DomainMerge),
}

/// The sockets of all listeners.
struct ServerSockets {
    http: BoundListener,
    grpc: GrpcSocket,
    debug: BoundListener,
    metrics: Option<(BoundListener, String)>,
}

enum GrpcSocket {
    Tcp(BoundListener),
    Unix(UnixSocket, Option<Arc<Certificate>>),
}

/// An error at startup.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A listener cannot be bound, or a certificate is invalid.
    #[error("{0}")]
    Listen(StartupError),
    /// The configuration is invalid or unreadable.
    #[error("{0}")]
    Config(String),
    /// The counters cannot be created.
    #[error("{0}")]
    Counters(BuildError),
    /// The settings are not supported.
    #[error("{0}")]
    Unsupported(&'static str),
}

impl RateLimitServer {
    /// Loads the configuration and binds the listeners. It serves only after [`run`](Self::run). Without a store it counts
    /// in memory.
    pub fn open(environment: &Environment, stores: ServerStores) -> Result<Self, ServerError> {
        let settings = service_settings(environment, stores)?;
        let service = Arc::new(DescriptorService::new(settings).map_err(ServerError::Counters)?);
        let (host, own) = (environment.http.host, &environment.tidegate);
        let secret = |token: &ApiToken| Secret::new(token.0.clone());
        let programs = own.tokens.iter().enumerate();
        let programs = programs.map(|(index, token)| (index.to_string().into(), secret(token)));
        let operators = Operators::new(
            own.admin_token.as_ref().map(|token| (Operator::shared(), secret(token))),
            Some(host),
        );
        let authorization = Arc::new(Authorization::new(programs, operators));
        let reservations = Arc::new(ReservationApi::new(service.clone(), authorization.clone()));
        let http_certificate = own.http_tls.as_ref().map(Certificate::load).transpose();
        let http_certificate = http_certificate.map_err(ServerError::Listen)?;
        let grpc_certificate = load_certificate(environment)?;
        let bind = |endpoint: Endpoint, certificate: &Option<Arc<Certificate>>| {
            let address = SocketAddr::new(endpoint.host, endpoint.port);
            BoundListener::reserve(address, certificate.clone()).map_err(ServerError::Listen)
        };
        let http = |endpoint: Endpoint| bind(endpoint, &http_certificate);
        let config_source = open_config_source(environment, &service)?;
        let metrics = environment.prometheus.as_ref();
        // A management server may be slow; without a configuration every decision would be `UNAVAILABLE`.
        let waits_for_config =
            matches!(&config_source, ConfigSource::Xds(..)) && environment.start == StartMode::WaitForConfig;
        let sockets = ServerSockets {
            http: http(environment.http)?,
            grpc: match &environment.grpc {
                GrpcBindAddress::Tcp(endpoint) => GrpcSocket::Tcp(bind(*endpoint, &grpc_certificate)?),
                GrpcBindAddress::Socket(path) => GrpcSocket::Unix(bind_unix(path)?, grpc_certificate),
            },
            debug: http(environment.debug)?,
            metrics: metrics
                .map(|metrics| Ok((http(metrics.endpoint)?, metrics.path.clone())))
                .transpose()?,
        };
        if !waits_for_config {
            sockets.listen()?;
        }
        Ok(Self {
            health: ServiceHealth::new(service.clone()).config(environment.health),
            service,
            config_source,
            sockets,
            grpc_settings: GrpcSettings {
                max_connection_age: environment.max_connection_age,
                ..GrpcSettings::default()
            },
            reservations,
            authorization,
            waits_for_config,
            store_requirement: environment.redis.store_requirement,
            statsd: environment.statsd.clone(),
        })
    }

    /// Includes the store in the health checks if the failure mode is `closed`. `last_error` returns the current error of the
    /// store, if there is one.
    #[must_use]
    pub fn store_health(self, last_error: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        match self.service.settings.outage {
            FailureMode::Closed => {
                Self { health: self.health.store(self.store_requirement, last_error), ..self }
            }
            FailureMode::Open | FailureMode::Local { .. } => self,
        }
    }

    /// The addresses of the listeners, each with its purpose.
    pub fn addresses(&self) -> Vec<(&'static str, String)> {
        let ServerSockets { http, grpc, debug, metrics } = &self.sockets;
        let grpc = match grpc {
            GrpcSocket::Tcp(bound) => bound.address().to_string(),
            GrpcSocket::Unix(socket, _) => {
                let path = socket
                    .local_addr()
                    .ok()
                    .and_then(|at| at.as_pathname().map(|path| path.display().to_string()));
                path.unwrap_or_default()
            }
        };
        let url = |bound: &BoundListener| {
            let scheme = if bound.certificate().is_some() { "https" } else { "http" };
            format!("{scheme}://{}", bound.address())
        };
        let mut addresses = vec![
            ("gRPC", grpc),
            ("JSON", format!("{}/json", url(http))),
            ("pages", format!("{}/", url(debug))),
        ];
        if let Some((bound, path)) = metrics {
            addresses.push(("metrics", format!("{}{path}", url(bound))));
        }
        addresses
    }

    /// Serves until `shutdown`, then drains requests in flight.
    pub async fn run(self, shutdown: impl Future<Output = ()> + Send) -> Result<(), ServerError> {
        self.serve(pin!(shutdown)).await
    }

    /// Boxed here, so that the service is compiled with this crate and not again with each program that runs it.
    fn serve<'a>(self, shutdown: ShutdownSignal<'a>) -> BoxFuture<'a, Result<(), ServerError>> {
        Box::pin(self.serve_until(shutdown))
    }

    async fn serve_until(self, mut shutdown: ShutdownSignal<'_>) -> Result<(), ServerError> {
        let Self {
            service,
            health,
            config_source,
            sockets,
            grpc_settings,
            reservations,
            authorization,
            waits_for_config,
            statsd,
            ..
        } = self;
        let health = Arc::new(health);
        let config_task = tokio::spawn(watch_config(config_source, service.clone(), health.clone()));
        if waits_for_config {
            let loaded = async {
                while service.config().is_none() {
                    health.changed().await;
                }
            };
            events::InitialConfigPending.emit();
            tokio::select! {
                () = loaded => {}
                () = shutdown.as_mut() => {
                    config_task.abort();
                    return Ok(());
                }
            }
            sockets.listen()?;
        }
        let ServerSockets { http, grpc, debug, metrics } = sockets;
        let (stop, stopped) = watch::channel(());
        let wait_for_stop = || {
            let mut stopped = stopped.clone();
            async move {
                // Dropping the sender signals the shutdown.
                let _ = stopped.changed().await;
            }
        };
        let server = GrpcServer::new(service.clone())
            .await
            .authorization(Arc::new(ArcSwap::from(authorization.clone())));
        server.health().set(serving_status(&health)).await;
        let health_task = tokio::spawn(monitor_health(health.clone(), server.health(), reservations.clone()));
        let grpc: BoxFuture<'static, ()> = match grpc {
            GrpcSocket::Tcp(bound) => {
                let listener = bound.into_listener().map_err(ServerError::Listen)?;
                Box::pin(server.serve_listener(listener, grpc_settings, wait_for_stop()))
            }
            GrpcSocket::Unix(socket, certificate) => {
                let socket = UnixListener::from_std(socket)
                    .map_err(|error| ServerError::Listen(StartupError::System(error)))?;
                Box::pin(server.serve_listener(
                    Listener::new(socket, certificate),
                    grpc_settings,
                    wait_for_stop(),
                ))
            }
        };
        let serve = |router: Router, bound: BoundListener| {
            let connections =
                Connections { drain_timeout: grpc_settings.drain_timeout, ..Connections::default() };
            let server = HttpServer::new(TowerToHyperService::new(router), &connections);
            Ok(server.serve_until(bound.into_listener().map_err(ServerError::Listen)?, wait_for_stop()))
        };
        let plain = serve(http_router(&service, &health, reservations, &authorization), http)?;
        let pages = serve(require_token(debug_router(&service), &authorization), debug)?;
        if let Some((bound, path)) = metrics {
            tokio::spawn(serve(require_token(metrics_router(&service, path), &authorization), bound)?);
        }
        let statsd_task = statsd.map(|settings| {
            let sender = StatsdSender::new(service.clone(), settings);
            tokio::spawn(sender.run(wait_for_stop()))
        });
        let stop_listeners = async {
            shutdown.await;
            health.drain();
            drop(stop);
        };
        tokio::join!(stop_listeners, grpc, plain, pages);
        config_task.abort();
        health_task.abort();
        if let Some(task) = statsd_task {
            // The last flush has a timeout.
            let _ = task.await;
        }
        Ok(())
    }
}

/// Requires a token for these pages, if there are tokens.
fn require_token(pages: Router, authorization: &Arc<Authorization>) -> Router {
    let authorization = authorization.clone();
    pages.layer(middleware::from_fn(move |request: Request, next: Next| {
        let caller = authorization.authenticate(request.headers());
        async move {
            match caller {
                Ok(_) => next.run(request).await,
                Err(error) => error.into(),
            }
        }
    }))
}

/// Updates the gRPC health status and closes expired reservations.
async fn monitor_health(
    health: Arc<ServiceHealth>,
    grpc_health: GrpcHealth,
    reservations: Arc<ReservationApi>,
) {
    let mut reported = None;
    loop {
        let serving = serving_status(&health);
        if reported != Some(serving) {
            grpc_health.set(serving).await;
            reported = Some(serving);
        }
        reservations.close_expired();
        let interval = if serving == ServingState::Serving {
            HEALTH_CHECK_INTERVAL
        } else {
            STARTUP_HEALTH_CHECK_INTERVAL
        };
        let _ = time::timeout(interval, health.changed()).await;
    }
}

fn serving_status(health: &ServiceHealth) -> ServingState {
    match health.status() {
        HealthStatus::Serving => ServingState::Serving,
        HealthStatus::NotServing(_) => ServingState::NotServing,
    }
}

/// How often the health of the store is checked.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The same while the service is not serving, to detect a store that is reachable only briefly.
const STARTUP_HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Reloads the configuration on each change. Keeps the previous one if the new one is invalid.
async fn watch_config(source: ConfigSource, service: Arc<DescriptorService>, health: Arc<ServiceHealth>) {
    let apply = |service: &DescriptorService, config: Result<DescriptorSet, String>| match config {
        Ok(set) => {
            let limits = set.limits().count();
            service.load(Arc::new(set));
            health.notify_config_change();
            events::ConfigLoaded { limits }.emit();
            Ok(())
        }
        Err(error) => {
            service.metrics().record_config_error();
            events::ConfigRejected { error: &error }.emit();
            Err(error)
        }
    };
    match source {
        ConfigSource::Folder(mut source) => loop {
            source.changed().await;
            let _ = apply(&service, source.load().map_err(|error| error.to_string()));
        },
        ConfigSource::Xds(client, merge) => {
            let apply_configs = move |configs| {
                let set = DescriptorSet::build(super::xds::to_raw_domains(configs), merge);
                apply(&service, set.map_err(|error| error.to_string()))
            };
            client.run(apply_configs, std::future::pending()).await;
        }
    }
}

/// `/json`, `/healthcheck`, and the operations that Envoy's protocol does not have.
fn http_router(
    service: &Arc<DescriptorService>,
    health: &Arc<ServiceHealth>,
    reservations: Arc<ReservationApi>,
    authorization: &Arc<Authorization>,
) -> Router {
    let (json, health) =
        (JsonHandler::new(service.clone()).authorization(authorization.clone()), health.clone());
    let check = move |request: Request| {
        let json = json.clone();
        async move { json.handle(request).await.map(Body::from) }
    };
    let health = move || async move { health_page(&health).map(Body::from) };
    Router::new()
        .route("/json", routing::any(check))
        .route("/healthcheck", routing::any(health))
        .merge(settle_router(reservations))
        .fallback(|| async { not_found() })
}

fn debug_router(service: &Arc<DescriptorService>) -> Router {
    let service = service.clone();
    Router::new().fallback(move |request: Request| async move {
        debug_page(&service, request.uri().path()).map(Body::from)
    })
}

fn metrics_router(service: &Arc<DescriptorService>, path: String) -> Router {
    let service = service.clone();
    Router::new().fallback(move |request: Request| async move {
        match request.uri().path() == path {
            true => metrics_page(&service).map(Body::from),
            false => not_found(),
        }
    })
}

fn not_found() -> Response {
    let mut response = Response::new(Body::from("Not Found\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

impl ServerSockets {
    /// Starts to accept connections.
    fn listen(&self) -> Result<(), ServerError> {
        let grpc = match &self.grpc {
            GrpcSocket::Tcp(bound) => Some(bound),
            GrpcSocket::Unix(..) => None,
        };
        let metrics = self.metrics.iter().map(|(bound, _)| bound);
        let mut all = grpc.into_iter().chain([&self.http, &self.debug]).chain(metrics);
        all.try_for_each(BoundListener::listen).map_err(ServerError::Listen)
    }
}

/// Binds a Unix domain socket. Removes a stale socket file, but no other kind of file.
fn bind_unix(path: &std::path::Path) -> Result<UnixSocket, ServerError> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = fs::remove_file(path);
    }
    let bound = UnixSocket::bind(path).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(|error| ServerError::Config(format!("cannot listen on {}: {error}", path.display())))
}

impl fmt::Debug for RateLimitServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitServer").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
