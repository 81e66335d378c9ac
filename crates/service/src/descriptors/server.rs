//! The decision service as a process: where limits come from, its listeners, and what goes on between them.
//!
//! ```text
//!   folder or management server ──whenever it changes──▶ DescriptorService ◀── gRPC, /json
//!                                                              └──▶ pages: /rlconfig, /stats, /metrics
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
use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{self, Next},
    response::Response,
    routing,
};
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
    Authorization, BoundListener, Certificate, HttpServer, Listener, Operators, Secret, StartupError,
};
use tidegate_limiter::{BuildError, FailureMode};
use tidegate_policy::{
    descriptors::{DescriptorSet, DomainMerge},
    model::Connections,
};
use tokio::{net::UnixListener, sync::watch, time};

/// A decision service that is bound to its addresses, and has read its limits where these are files.
pub struct RateLimitServer {
    service: Arc<DescriptorService>,
    health: ServiceHealth,
    config_source: ConfigSource,
    sockets: ServerSockets,
    grpc_settings: GrpcSettings,
    reservations: Arc<ReservationApi>,
    authorization: Arc<Authorization>,
    /// Whether connections are refused until there are limits.
    waits_for_config: bool,
    store_requirement: StoreRequirement,
    statsd: Option<StatsdSettings>,
}

/// Where limits come from.
pub(super) enum ConfigSource {
    Folder(Box<DescriptorDirectory>),
    Xds(Box<XdsClient>, DomainMerge),
}

/// Where it listens.
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

/// Why a decision service does not start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// An address cannot be listened on, or a certificate cannot be used.
    #[error("{0}")]
    Listen(StartupError),
    /// The limits make no sense, or cannot be had.
    #[error("{0}")]
    Config(String),
    /// Its counters cannot be made.
    #[error("{0}")]
    Counters(BuildError),
    /// What is wanted cannot be done here.
    #[error("{0}")]
    Unsupported(&'static str),
}

impl RateLimitServer {
    /// Reads the limits and binds the addresses. Nothing is served before it [runs](Self::run). It counts in this process
    /// where there is no store.
    pub fn open(environment: &Environment, stores: ServerStores) -> Result<Self, ServerError> {
        let settings = service_settings(environment, stores)?;
        let service = Arc::new(DescriptorService::new(settings).map_err(ServerError::Counters)?);
        let (host, own) = (environment.http.host, &environment.tidegate);
        let secret = |token: &ApiToken| Secret::new(token.0.clone());
        let programs = own.tokens.iter().enumerate();
        let programs = programs.map(|(index, token)| (index.to_string().into(), secret(token)));
        let operators = Operators::new(own.admin_token.as_ref().map(secret), Some(host));
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
        let limits = open_config_source(environment, &service)?;
        let metrics = environment.prometheus.as_ref();
        // A management server may take a while, and nobody is to be answered without limits meanwhile.
        let waits_for_config =
            matches!(&limits, ConfigSource::Xds(..)) && environment.start == StartMode::WaitForConfig;
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
            config_source: limits,
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

    /// The same, whose health is that of its store, too, where nothing can be decided without it: this says what is the
    /// matter with it, if anything is.
    #[must_use]
    pub fn store_health(self, last_error: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        match self.service.settings.outage {
            FailureMode::Closed => {
                Self { health: self.health.store(self.store_requirement, last_error), ..self }
            }
            FailureMode::Open | FailureMode::Local { .. } => self,
        }
    }

    /// Where it listens, each with what is there.
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

    /// Serves until `shutdown`, and then until requests in flight have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServerError> {
        let Self {
            service,
            health,
            config_source: limits,
            sockets,
            grpc_settings,
            reservations: desk,
            authorization,
            waits_for_config: waits,
            statsd,
            ..
        } = self;
        let health = Arc::new(health);
        let config_task = tokio::spawn(watch_config(limits, service.clone(), health.clone()));
        let mut shutdown = pin!(shutdown);
        if waits {
            let loaded = async {
                while service.config().is_none() {
                    health.changed().await;
                }
            };
            tracing::info!("waiting for the first configuration");
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
                // A sender that is gone says that it is over.
                let _ = stopped.changed().await;
            }
        };
        let wire = GrpcServer::new(service.clone()).await.authorization(authorization.clone());
        wire.health().set(serving_status(&health)).await;
        let health_task = tokio::spawn(monitor_health(health.clone(), wire.health(), desk.clone()));
        let grpc: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match grpc {
            GrpcSocket::Tcp(bound) => {
                let listener = bound.into_listener().map_err(ServerError::Listen)?;
                Box::pin(wire.serve_listener(listener, grpc_settings, wait_for_stop()))
            }
            GrpcSocket::Unix(socket, certificate) => {
                let socket = UnixListener::from_std(socket)
                    .map_err(|error| ServerError::Listen(StartupError::System(error)))?;
                Box::pin(wire.serve_listener(
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
        let plain = serve(http_router(&service, &health, desk, &authorization), http)?;
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
        if let Some(sending) = statsd_task {
            // It waits for a server for a while only.
            let _ = sending.await;
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

/// Tells clients of gRPC how the service is, and does what is to be done from time to time.
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
        let interval =
            if serving == ServingState::Yes { HEALTH_CHECK_INTERVAL } else { STARTUP_HEALTH_CHECK_INTERVAL };
        let _ = time::timeout(interval, health.changed()).await;
    }
}

fn serving_status(health: &ServiceHealth) -> ServingState {
    match health.status() {
        HealthStatus::Serving => ServingState::Yes,
        HealthStatus::NotServing(_) => ServingState::No,
    }
}

/// How often the health of the store is checked.
const HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The same while the service is not serving: a store that was reached and is lost right after it was reached.
const STARTUP_HEALTH_CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Has limits read again whenever they change. Those that make no sense change nothing.
async fn watch_config(limits: ConfigSource, service: Arc<DescriptorService>, health: Arc<ServiceHealth>) {
    let apply = |service: &DescriptorService, limits: Result<DescriptorSet, String>| match limits {
        Ok(set) => {
            service.load(Arc::new(set));
            health.notify_config_change();
            tracing::info!("configuration loaded");
            Ok(())
        }
        Err(error) => {
            service.metrics().record_config_error();
            tracing::error!(%error, "configuration rejected, keeping the previous one");
            Err(error)
        }
    };
    match limits {
        ConfigSource::Folder(mut source) => loop {
            source.changed().await;
            let _ = apply(&service, source.load().map_err(|error| error.to_string()));
        },
        ConfigSource::Xds(client, merge) => {
            let take = move |configs| {
                let set = DescriptorSet::build(super::xds::to_raw_domains(configs), merge);
                apply(&service, set.map_err(|error| error.to_string()))
            };
            client.run(take, std::future::pending()).await;
        }
    }
}

/// `/json`, `/healthcheck`, and what Envoy's protocol has no words for.
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
    /// Accepts connections from now on.
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

/// A socket that one before left behind is taken away; anything else is not.
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
