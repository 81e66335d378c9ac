//! The decision service as a process: its files, its listeners, and what goes on between them.
//!
//! ```text
//!   directory ──read again when it changes──▶ DescriptorService ◀── gRPC, /json
//!                                                    └──▶ pages: /rlconfig, /stats, /metrics
//! ```

use super::{
    DescriptorService, DescriptorSource, Health, ServiceSettings, debug_page, health_page,
    wire::{GrpcTerms, GrpcWire, JsonWire, Serving},
};
use crate::Fault;
use axum::{Router, body::Body, extract::Request, response::Response};
use bytes::Bytes;
use http::StatusCode;
use std::{
    error, fmt,
    future::Future,
    net::{SocketAddr, TcpListener as Socket},
    sync::Arc,
};
use tidegate_engine::BuildError;
use tokio::{net::TcpListener, sync::watch};

/// Where a decision service listens, what it reads, and how it counts.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// Plain HTTP: `/json` and `/healthcheck`.
    pub http: SocketAddr,
    /// gRPC.
    pub grpc: SocketAddr,
    /// Pages for operators.
    pub debug: SocketAddr,
    /// Where limits are read from.
    pub source: DescriptorSource,
    /// How it counts, and what it tells.
    pub service: ServiceSettings,
}

/// A decision service that has read its files and is bound to its addresses.
#[derive(Debug)]
pub struct ServiceHost {
    service: Arc<DescriptorService>,
    health: Arc<Health>,
    source: DescriptorSource,
    http: Socket,
    grpc: Socket,
    debug: Socket,
}

/// Why a decision service does not start.
#[derive(Debug)]
pub enum HostError {
    /// An address cannot be listened on.
    Listen(Fault),
    /// The files make no sense.
    Files(String),
    /// Its counters cannot be made.
    Counters(BuildError),
}

impl ServiceHost {
    /// Reads the files and binds the addresses. Nothing is served before it [runs](Self::run).
    pub fn open(settings: HostSettings) -> Result<Self, HostError> {
        let HostSettings { http, grpc, debug, mut source, service } = settings;
        let service = Arc::new(DescriptorService::new(service).map_err(HostError::Counters)?);
        service.load(Arc::new(source.load().map_err(HostError::Files)?));
        Ok(Self {
            health: Arc::new(Health::new(service.clone())),
            service,
            source,
            http: bind(http)?,
            grpc: bind(grpc)?,
            debug: bind(debug)?,
        })
    }

    /// Where it listens: plain HTTP, gRPC, pages for operators.
    pub fn addresses(&self) -> [SocketAddr; 3] {
        let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
        [&self.http, &self.grpc, &self.debug].map(|socket| socket.local_addr().unwrap_or(unknown))
    }

    /// Serves until `shutdown`, and then until requests in flight have ended.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), HostError> {
        let Self { service, health, source, http, grpc, debug } = self;
        let (http, grpc, debug) = (listen(http)?, listen(grpc)?, listen(debug)?);
        let (stop, stopped) = watch::channel(());
        let ended = || {
            let mut stopped = stopped.clone();
            async move {
                // A sender that is gone says the same.
                let _ = stopped.changed().await;
            }
        };
        let wire = GrpcWire::new(service.clone()).await;
        wire.health().set(Serving::Yes).await;
        let serving = wire.serve(grpc, None, GrpcTerms::default(), ended());
        let http = axum::serve(http, plain(&service, &health)).with_graceful_shutdown(ended());
        let debug = axum::serve(debug, pages(&service)).with_graceful_shutdown(ended());
        let watching = tokio::spawn(follow(source, service));
        let ending = async {
            shutdown.await;
            health.drain();
            drop(stop);
        };
        let (http, debug) = (http.into_future(), debug.into_future());
        let _ = tokio::join!(ending, serving, http, debug);
        watching.abort();
        Ok(())
    }
}

/// Reads the files again whenever they change. A set that makes no sense changes nothing.
async fn follow(mut source: DescriptorSource, service: Arc<DescriptorService>) {
    loop {
        source.changed().await;
        match source.load() {
            Ok(set) => {
                service.load(Arc::new(set));
                tracing::info!("new limits are in force");
            }
            Err(error) => {
                service.metrics().config_refused();
                tracing::error!(%error, "the limits before stay in force");
            }
        }
    }
}

/// `/json` and `/healthcheck`.
fn plain(service: &Arc<DescriptorService>, health: &Arc<Health>) -> Router {
    let (json, health) = (JsonWire::new(service.clone()), health.clone());
    let ask = move |request: Request| {
        let json = json.clone();
        async move { json.answer(request).await.map(Body::from) }
    };
    let health = move || {
        let health = health.clone();
        async move { health_page(&health).map(Body::from) }
    };
    Router::new()
        .route("/json", axum::routing::any(ask))
        .route("/healthcheck", axum::routing::get(health))
        .fallback(|| async { nothing() })
}

fn pages(service: &Arc<DescriptorService>) -> Router {
    let service = service.clone();
    Router::new().fallback(move |request: Request| {
        let service = service.clone();
        async move { debug_page(&service, request.uri().path()).map(Body::from) }
    })
}

fn nothing() -> Response {
    let mut response = http::Response::new(Body::from(Bytes::from_static(b"Not Found\n")));
    *response.status_mut() = StatusCode::NOT_FOUND;
    response
}

fn bind(address: SocketAddr) -> Result<Socket, HostError> {
    let bound = Socket::bind(address).and_then(|socket| {
        socket.set_nonblocking(true)?;
        Ok(socket)
    });
    bound.map_err(|source| HostError::Listen(Fault::Listen { address, source }))
}

fn listen(socket: Socket) -> Result<TcpListener, HostError> {
    TcpListener::from_std(socket).map_err(|error| HostError::Listen(Fault::Machine(error)))
}

impl fmt::Display for HostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(fault) => fault.fmt(f),
            Self::Files(error) => error.fmt(f),
            Self::Counters(error) => error.fmt(f),
        }
    }
}

impl error::Error for HostError {}
