//! The decision service as a process: where limits come from, its listeners, and what goes on between them.
//!
//! ```text
//!   folder or management server ──whenever it changes──▶ DescriptorService ◀── gRPC, /json
//!                                                              └──▶ pages: /rlconfig, /stats, /metrics
//! ```

use super::{
    DescriptorService, DescriptorSource, Endpoint, Environment, GrpcEndpoint, Health, ServiceSettings,
    SourceSettings, Start, TellHeaders, debug_page, health_page, metrics_page,
    wire::{GrpcTerms, GrpcWire, JsonWire, Serving},
    xds::{Backoff, XdsClient, XdsSettings, XdsTls},
};
use crate::{Fault, Roots, tls::Certificate};
use axum::{Router, body::Body, extract::Request, response::Response, routing};
use http::{HeaderName, HeaderValue, StatusCode};
use std::{
    error, fmt, fs,
    future::{Future, IntoFuture},
    net::{SocketAddr, TcpListener as Socket},
    os::unix::{fs::FileTypeExt, net::UnixListener as UnixSocket},
    sync::Arc,
};
use tidegate_engine::{BuildError, Store};
use tidegate_policy::{
    descriptors::{DescriptorSet, Merge},
    model::Tls,
};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::watch,
    time,
};
use tokio_rustls::TlsAcceptor;

/// A decision service that is bound to its addresses, and has read its limits where these are files.
pub struct ServiceHost {
    service: Arc<DescriptorService>,
    health: Health,
    limits: Limits,
    http: Socket,
    grpc: GrpcSocket,
    debug: Socket,
    metrics: Option<(Socket, String)>,
    tls: Option<TlsAcceptor>,
    terms: GrpcTerms,
}

/// Where limits come from.
enum Limits {
    Folder(Box<DescriptorSource>),
    Server(Box<XdsClient>, Merge),
}

enum GrpcSocket {
    Tcp(Socket),
    Unix(UnixSocket),
}

/// Why a decision service does not start.
#[derive(Debug)]
pub enum HostError {
    /// An address cannot be listened on, or a certificate cannot be used.
    Listen(Fault),
    /// The limits make no sense, or cannot be had.
    Limits(String),
    /// Its counters cannot be made.
    Counters(BuildError),
    /// What is wanted cannot be done here.
    Unable(&'static str),
}

impl ServiceHost {
    /// Reads the limits and binds the addresses. Nothing is served before it [runs](Self::run). It counts in this process
    /// where there is no store.
    pub fn open(environment: &Environment, store: Option<Arc<dyn Store>>) -> Result<Self, HostError> {
        let settings = settings(environment, store);
        let service = Arc::new(DescriptorService::new(settings).map_err(HostError::Counters)?);
        let limits = limits(environment, &service)?;
        let metrics = environment.prometheus.as_ref();
        Ok(Self {
            health: Health::new(service.clone()).config(environment.health),
            service,
            limits,
            http: bind(environment.http)?,
            grpc: match &environment.grpc {
                GrpcEndpoint::Tcp(endpoint) => GrpcSocket::Tcp(bind(*endpoint)?),
                GrpcEndpoint::Socket(path) => GrpcSocket::Unix(bind_unix(path)?),
            },
            debug: bind(environment.debug)?,
            metrics: metrics
                .map(|metrics| Ok((bind(metrics.endpoint)?, metrics.path.clone())))
                .transpose()?,
            tls: acceptor(environment)?,
            terms: GrpcTerms { age: environment.connection_age, ..GrpcTerms::default() },
        })
    }

    /// The same, whose health is that of its store, too: this says what is the matter with it, if anything is.
    #[must_use]
    pub fn store_health(self, trouble: impl Fn() -> Option<String> + Send + Sync + 'static) -> Self {
        Self { health: self.health.store(trouble), ..self }
    }

    /// Where it listens, each with what is there.
    pub fn addresses(&self) -> Vec<(&'static str, String)> {
        let shown = |socket: &Socket| socket.local_addr().map(|at| at.to_string()).unwrap_or_default();
        let grpc = match &self.grpc {
            GrpcSocket::Tcp(socket) => shown(socket),
            GrpcSocket::Unix(socket) => {
                let path = socket
                    .local_addr()
                    .ok()
                    .and_then(|at| at.as_pathname().map(|path| path.display().to_string()));
                path.unwrap_or_default()
            }
        };
        let mut addresses = vec![
            ("gRPC", grpc),
            ("JSON", format!("http://{}/json", shown(&self.http))),
            ("pages", format!("http://{}/", shown(&self.debug))),
        ];
        if let Some((socket, path)) = &self.metrics {
            addresses.push(("metrics", format!("http://{}{path}", shown(socket))));
        }
        addresses
    }

    /// Serves until `shutdown`, and then until requests in flight have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), HostError> {
        let Self { service, health, limits, http, grpc, debug, metrics, tls, terms } = self;
        let health = Arc::new(health);
        let (stop, stopped) = watch::channel(());
        let ended = || {
            let mut stopped = stopped.clone();
            async move {
                // A sender that is gone says that it is over.
                let _ = stopped.changed().await;
            }
        };
        let drain = terms.drain;
        let wire = GrpcWire::new(service.clone()).await;
        wire.health().set(Serving::Yes).await;
        let grpc: std::pin::Pin<Box<dyn Future<Output = ()> + Send>> = match grpc {
            GrpcSocket::Tcp(socket) => Box::pin(wire.serve(listen(socket)?, tls, terms, ended())),
            GrpcSocket::Unix(socket) => {
                let listener = UnixListener::from_std(socket).map_err(machine)?;
                Box::pin(wire.serve(listener, tls, terms, ended()))
            }
        };
        let late = || {
            let ended = ended();
            async move {
                ended.await;
                time::sleep(drain).await;
            }
        };
        let plain = axum::serve(listen(http)?, plain(&service, &health)).with_graceful_shutdown(ended());
        let plain = within(plain.into_future(), late());
        let pages = axum::serve(listen(debug)?, pages(&service)).with_graceful_shutdown(ended());
        let pages = within(pages.into_future(), late());
        if let Some((socket, path)) = metrics {
            let page = axum::serve(listen(socket)?, only_metrics(&service, path));
            tokio::spawn(page.with_graceful_shutdown(ended()).into_future());
        }
        let following = tokio::spawn(follow(limits, service));
        let ending = async {
            shutdown.await;
            health.drain();
            drop(stop);
        };
        tokio::join!(ending, grpc, plain, pages);
        following.abort();
        Ok(())
    }
}

/// Serves to its end, or until it is too late for that: who asks slowly keeps nobody waiting.
async fn within<T>(serving: impl Future<Output = T>, late: impl Future<Output = ()>) {
    tokio::select! {
        _ = serving => {}
        () = late => {}
    }
}

/// Has limits read again whenever they change. Those that make no sense change nothing.
async fn follow(limits: Limits, service: Arc<DescriptorService>) {
    let put = |service: &DescriptorService, limits: Result<DescriptorSet, String>| match limits {
        Ok(set) => {
            service.load(Arc::new(set));
            tracing::info!("new limits are in force");
            Ok(())
        }
        Err(error) => {
            service.metrics().config_refused();
            tracing::error!(%error, "the limits before stay in force");
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

fn limits(environment: &Environment, service: &DescriptorService) -> Result<Limits, HostError> {
    match &environment.source {
        SourceSettings::Folder { folder, dotfiles } => {
            let source = DescriptorSource::new(folder).dotfiles(*dotfiles).merge(environment.merge);
            let mut source = Box::new(source);
            match (source.load(), environment.start) {
                (Ok(set), _) => service.load(Arc::new(set)),
                (Err(error), Start::WithDescriptors) => return Err(HostError::Limits(error.to_string())),
                (Err(error), Start::AtOnce) => {
                    service.metrics().config_refused();
                    tracing::error!(%error, "serves without limits until there are some");
                }
            }
            Ok(Limits::Folder(source))
        }
        SourceSettings::Xds(said) => {
            let header = |(name, value): &(String, String)| {
                let (name, value) = (HeaderName::try_from(name).ok()?, HeaderValue::try_from(value).ok()?);
                Some((name, value))
            };
            let client = XdsClient::new(XdsSettings {
                server: said.server.clone(),
                node: said.node_id.clone(),
                tls: said.tls.as_ref().map(|tls| XdsTls {
                    roots: tls.authority.clone().map_or(Roots::System, Roots::File),
                    identity: tls.certificate.clone().zip(tls.key.clone()),
                    name: tls.server_name.clone(),
                }),
                headers: said.headers.iter().filter_map(header).collect(),
                backoff: Backoff { first: said.backoff.0, most: said.backoff.1 },
            });
            let client = client.map_err(|error| HostError::Limits(error.to_string()))?;
            Ok(Limits::Server(Box::new(client), environment.merge))
        }
    }
}

fn settings(environment: &Environment, store: Option<Arc<dyn Store>>) -> ServiceSettings {
    let (counting, answers) = (&environment.counting, &environment.answers);
    ServiceSettings {
        store,
        when_over: counting.over_limit,
        enforcement: counting.shadow,
        quota_mode: counting.quota_mode,
        near_limit_ratio: counting.near_limit_ratio,
        headers: answers.headers.clone().map_or(TellHeaders::Nothing, TellHeaders::Three),
        metadata: answers.metadata,
        ..ServiceSettings::default()
    }
}

fn acceptor(environment: &Environment) -> Result<Option<TlsAcceptor>, HostError> {
    let Some(tls) = &environment.tls else { return Ok(None) };
    if tls.client_name.is_some() {
        // To leave it out would let in whom it keeps out.
        return Err(HostError::Unable(
            "GRPC_CLIENT_TLS_SAN: names in certificates of clients are not compared; use an authority of their own",
        ));
    }
    let files = Tls {
        certificate: tls.certificate.clone(),
        key: tls.key.clone(),
        clients: tls.client_authority.clone(),
    };
    Certificate::load(&files).map(|certificate| Some(certificate.acceptor())).map_err(HostError::Listen)
}

/// `/json` and `/healthcheck`.
fn plain(service: &Arc<DescriptorService>, health: &Arc<Health>) -> Router {
    let (json, health) = (JsonWire::new(service.clone()), health.clone());
    let ask = move |request: Request| {
        let json = json.clone();
        async move { json.answer(request).await.map(Body::from) }
    };
    let health = move || async move { health_page(&health).map(Body::from) };
    Router::new()
        .route("/json", routing::any(ask))
        .route("/healthcheck", routing::get(health))
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

fn bind(endpoint: Endpoint) -> Result<Socket, HostError> {
    let address = SocketAddr::new(endpoint.host, endpoint.port);
    let bound = Socket::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(|source| HostError::Listen(Fault::Listen { address, source }))
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

fn listen(socket: Socket) -> Result<TcpListener, HostError> {
    TcpListener::from_std(socket).map_err(machine)
}

fn machine(error: std::io::Error) -> HostError {
    HostError::Listen(Fault::Machine(error))
}

impl fmt::Debug for ServiceHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceHost").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(fault) => fault.fmt(f),
            Self::Limits(problem) => f.write_str(problem),
            Self::Counters(error) => error.fmt(f),
            Self::Unable(what) => f.write_str(what),
        }
    }
}

impl error::Error for HostError {}
