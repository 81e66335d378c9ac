//! The decision service as a process: where limits come from, its listeners, and what goes on between them.
//!
//! ```text
//!   folder or management server ──whenever it changes──▶ DescriptorService ◀── gRPC, /json
//!                                                              └──▶ pages: /rlconfig, /stats, /metrics
//! ```

use super::{
    AdminToken, DescriptorService, DescriptorSource, Endpoint, Environment, GrpcEndpoint, Health,
    HealthStatus, HostStores, Start, StatsdSettings, StoreNeed, debug_page, health_page, metrics_page,
    opening::{certificate, limits, settings},
    statsd::StatsdSender,
    wire::{GrpcHealth, GrpcSettings, GrpcWire, JsonWire, Serving, SettleDesk, settle_router},
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
    Authorization, BoundListener, Certificate, Fault, HttpServer, Listener, Operators, Secret,
};
use tidegate_limiter::{BuildError, FailureMode};
use tidegate_policy::{
    descriptors::{DescriptorSet, DomainMerge},
    model::Connections,
};
use tokio::{net::UnixListener, sync::watch, time};

/// A decision service that is bound to its addresses, and has read its limits where these are files.
pub struct ServiceHost {
    service: Arc<DescriptorService>,
    health: Health,
    limits: Limits,
    sockets: Sockets,
    grpc_settings: GrpcSettings,
    desk: Arc<SettleDesk>,
    authorization: Arc<Authorization>,
    /// Whether connections are refused until there are limits.
    waits: bool,
    store_need: StoreNeed,
    statsd: Option<StatsdSettings>,
}

/// Where limits come from.
pub(super) enum Limits {
    Folder(Box<DescriptorSource>),
    Server(Box<XdsClient>, DomainMerge),
}

/// Where it listens.
struct Sockets {
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
pub enum HostError {
    /// An address cannot be listened on, or a certificate cannot be used.
    #[error("{0}")]
    Listen(Fault),
    /// The limits make no sense, or cannot be had.
    #[error("{0}")]
    Limits(String),
    /// Its counters cannot be made.
    #[error("{0}")]
    Counters(BuildError),
    /// What is wanted cannot be done here.
    #[error("{0}")]
    Unable(&'static str),
}

impl ServiceHost {
    /// Reads the limits and binds the addresses. Nothing is served before it [runs](Self::run). It counts in this process
    /// where there is no store.
    pub fn open(environment: &Environment, stores: HostStores) -> Result<Self, HostError> {
        let settings = settings(environment, stores)?;
        let service = Arc::new(DescriptorService::new(settings).map_err(HostError::Counters)?);
        let (host, own) = (environment.http.host, &environment.own);
        let secret = |token: &AdminToken| Secret::new(token.0.clone());
        let programs = own.tokens.iter().enumerate();
        let programs = programs.map(|(index, token)| (index.to_string().into(), secret(token)));
        let operators = Operators::new(own.admin_token.as_ref().map(secret), Some(host));
        let authorization = Arc::new(Authorization::new(programs, operators));
        let desk = Arc::new(SettleDesk::new(service.clone(), authorization.clone()));
        let http_certificate = own.http_tls.as_ref().map(Certificate::load).transpose();
        let http_certificate = http_certificate.map_err(HostError::Listen)?;
        let grpc_certificate = certificate(environment)?;
        let bind = |endpoint: Endpoint, certificate: &Option<Arc<Certificate>>| {
            let address = SocketAddr::new(endpoint.host, endpoint.port);
            BoundListener::reserve(address, certificate.clone()).map_err(HostError::Listen)
        };
        let http = |endpoint: Endpoint| bind(endpoint, &http_certificate);
        let limits = limits(environment, &service)?;
        let metrics = environment.prometheus.as_ref();
        // A management server may take a while, and nobody is to be answered without limits meanwhile.
        let waits = matches!(&limits, Limits::Server(..)) && environment.start == Start::WithDescriptors;
        let sockets = Sockets {
            http: http(environment.http)?,
            grpc: match &environment.grpc {
                GrpcEndpoint::Tcp(endpoint) => GrpcSocket::Tcp(bind(*endpoint, &grpc_certificate)?),
                GrpcEndpoint::Socket(path) => GrpcSocket::Unix(bind_unix(path)?, grpc_certificate),
            },
            debug: http(environment.debug)?,
            metrics: metrics
                .map(|metrics| Ok((http(metrics.endpoint)?, metrics.path.clone())))
                .transpose()?,
        };
        if !waits {
            sockets.listen()?;
        }
        Ok(Self {
            health: Health::new(service.clone()).config(environment.health),
            service,
            limits,
            sockets,
            grpc_settings: GrpcSettings {
                max_connection_age: environment.connection_age,
                ..GrpcSettings::default()
            },
            desk,
            authorization,
            waits,
            store_need: environment.redis.health,
            statsd: environment.statsd.clone(),
        })
    }

    /// The same, whose health is that of its store, too, where nothing can be decided without it: this says what is the
    /// matter with it, if anything is.
    #[must_use]
    pub fn store_health(self, trouble: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        match self.service.settings.outage {
            FailureMode::Closed => Self { health: self.health.store(self.store_need, trouble), ..self },
            FailureMode::Open | FailureMode::Local { .. } => self,
        }
    }

    /// Where it listens, each with what is there.
    pub fn addresses(&self) -> Vec<(&'static str, String)> {
        let Sockets { http, grpc, debug, metrics } = &self.sockets;
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
        let at = |bound: &BoundListener| {
            let scheme = if bound.certificate().is_some() { "https" } else { "http" };
            format!("{scheme}://{}", bound.address())
        };
        let mut addresses = vec![
            ("gRPC", grpc),
            ("JSON", format!("{}/json", at(http))),
            ("pages", format!("{}/", at(debug))),
        ];
        if let Some((bound, path)) = metrics {
            addresses.push(("metrics", format!("{}{path}", at(bound))));
        }
        addresses
    }

    /// Serves until `shutdown`, and then until requests in flight have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), HostError> {
        let Self {
            service, health, limits, sockets, grpc_settings, desk, authorization, waits, statsd, ..
        } = self;
        let health = Arc::new(health);
        let following = tokio::spawn(follow(limits, service.clone(), health.clone()));
        let mut shutdown = pin!(shutdown);
        if waits {
            let loaded = async {
                while service.loaded().is_none() {
                    health.changed().await;
                }
            };
            tracing::info!("waiting for the first configuration");
            tokio::select! {
                () = loaded => {}
                () = shutdown.as_mut() => {
                    following.abort();
                    return Ok(());
                }
            }
            sockets.listen()?;
        }
        let Sockets { http, grpc, debug, metrics } = sockets;
        let (stop, stopped) = watch::channel(());
        let ended = || {
            let mut stopped = stopped.clone();
            async move {
                // A sender that is gone says that it is over.
                let _ = stopped.changed().await;
            }
        };
        let wire = GrpcWire::new(service.clone()).await.authorization(authorization.clone());
        wire.health().set(serving(&health)).await;
        let looking = tokio::spawn(look(health.clone(), wire.health(), desk.clone()));
        let grpc: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match grpc {
            GrpcSocket::Tcp(bound) => {
                let listener = bound.into_listener().map_err(HostError::Listen)?;
                Box::pin(wire.serve_listener(listener, grpc_settings, ended()))
            }
            GrpcSocket::Unix(socket, certificate) => {
                let socket = UnixListener::from_std(socket)
                    .map_err(|error| HostError::Listen(Fault::Machine(error)))?;
                Box::pin(wire.serve_listener(Listener::new(socket, certificate), grpc_settings, ended()))
            }
        };
        let serve = |router: Router, bound: BoundListener| {
            let connections =
                Connections { drain_timeout: grpc_settings.drain_timeout, ..Connections::default() };
            let server = HttpServer::new(TowerToHyperService::new(router), &connections);
            Ok(server.serve_until(bound.into_listener().map_err(HostError::Listen)?, ended()))
        };
        let plain = serve(plain(&service, &health, desk, &authorization), http)?;
        let pages = serve(authorized(pages(&service), &authorization), debug)?;
        if let Some((bound, path)) = metrics {
            tokio::spawn(serve(authorized(only_metrics(&service, path), &authorization), bound)?);
        }
        let sending = statsd.map(|settings| {
            let sender = StatsdSender::new(service.clone(), settings);
            tokio::spawn(sender.run(ended()))
        });
        let ending = async {
            shutdown.await;
            health.drain();
            drop(stop);
        };
        tokio::join!(ending, grpc, plain, pages);
        following.abort();
        looking.abort();
        if let Some(sending) = sending {
            // It waits for a server for a while only.
            let _ = sending.await;
        }
        Ok(())
    }
}

/// Requires a token for these pages, if there are tokens.
fn authorized(pages: Router, authorization: &Arc<Authorization>) -> Router {
    let authorization = authorization.clone();
    pages.layer(middleware::from_fn(move |request: Request, next: Next| {
        let caller = authorization.caller(request.headers());
        async move {
            match caller {
                Ok(_) => next.run(request).await,
                Err(error) => error.into(),
            }
        }
    }))
}

/// Tells clients of gRPC how the service is, and does what is to be done from time to time.
async fn look(health: Arc<Health>, wire: GrpcHealth, desk: Arc<SettleDesk>) {
    let mut told = None;
    loop {
        let serving = serving(&health);
        if told != Some(serving) {
            wire.set(serving).await;
            told = Some(serving);
        }
        desk.follow_time();
        let interval = if serving == Serving::Yes { LOOK } else { LOOK_UNTIL_SERVING };
        let _ = time::timeout(interval, health.changed()).await;
    }
}

fn serving(health: &Health) -> Serving {
    match health.status() {
        HealthStatus::Serving => Serving::Yes,
        HealthStatus::NotServing(_) => Serving::No,
    }
}

/// How often the health of the store is checked.
const LOOK: Duration = Duration::from_millis(200);
/// The same while the service is not serving: a store that was reached and is lost right after it was reached.
const LOOK_UNTIL_SERVING: Duration = Duration::from_millis(10);

/// Has limits read again whenever they change. Those that make no sense change nothing.
async fn follow(limits: Limits, service: Arc<DescriptorService>, health: Arc<Health>) {
    let put = |service: &DescriptorService, limits: Result<DescriptorSet, String>| match limits {
        Ok(set) => {
            service.load(Arc::new(set));
            health.configured();
            tracing::info!("configuration loaded");
            Ok(())
        }
        Err(error) => {
            service.metrics().config_refused();
            tracing::error!(%error, "configuration rejected, keeping the previous one");
            Err(error)
        }
    };
    match limits {
        Limits::Folder(mut source) => loop {
            source.changed().await;
            let _ = put(&service, source.load().map_err(|error| error.to_string()));
        },
        Limits::Server(client, merge) => {
            let take = move |configs| {
                let set = DescriptorSet::build(super::xds::said(configs), merge);
                put(&service, set.map_err(|error| error.to_string()))
            };
            client.run(take, std::future::pending()).await;
        }
    }
}

/// `/json`, `/healthcheck`, and what Envoy's protocol has no words for.
fn plain(
    service: &Arc<DescriptorService>,
    health: &Arc<Health>,
    desk: Arc<SettleDesk>,
    authorization: &Arc<Authorization>,
) -> Router {
    let (json, health) =
        (JsonWire::new(service.clone()).authorization(authorization.clone()), health.clone());
    let ask = move |request: Request| {
        let json = json.clone();
        async move { json.answer(request).await.map(Body::from) }
    };
    let health = move || async move { health_page(&health).map(Body::from) };
    Router::new()
        .route("/json", routing::any(ask))
        .route("/healthcheck", routing::any(health))
        .merge(settle_router(desk))
        .fallback(|| async { nothing() })
}

fn pages(service: &Arc<DescriptorService>) -> Router {
    let service = service.clone();
    Router::new().fallback(move |request: Request| async move {
        debug_page(&service, request.uri().path()).map(Body::from)
    })
}

fn only_metrics(service: &Arc<DescriptorService>, path: String) -> Router {
    let service = service.clone();
    Router::new().fallback(move |request: Request| async move {
        match request.uri().path() == path {
            true => metrics_page(&service).map(Body::from),
            false => nothing(),
        }
    })
}

fn nothing() -> Response {
    let mut response = Response::new(Body::from("Not Found\n"));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

impl Sockets {
    /// Accepts connections from now on.
    fn listen(&self) -> Result<(), HostError> {
        let grpc = match &self.grpc {
            GrpcSocket::Tcp(bound) => Some(bound),
            GrpcSocket::Unix(..) => None,
        };
        let metrics = self.metrics.iter().map(|(bound, _)| bound);
        let mut all = grpc.into_iter().chain([&self.http, &self.debug]).chain(metrics);
        all.try_for_each(BoundListener::listen).map_err(HostError::Listen)
    }
}

/// A socket that one before left behind is taken away; anything else is not.
fn bind_unix(path: &std::path::Path) -> Result<UnixSocket, HostError> {
    if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        let _ = fs::remove_file(path);
    }
    let bound = UnixSocket::bind(path).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(|error| HostError::Limits(format!("cannot listen on {}: {error}", path.display())))
}

impl fmt::Debug for ServiceHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHost").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}
