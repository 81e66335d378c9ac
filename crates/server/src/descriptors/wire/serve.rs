//! Connections of HTTP/2: taken, kept in bounds, and let go.

use super::Accept;
use crate::{greeting::Greeting, watch::TICK};
use http::{Request, Response};
use hyper::{body::Incoming, server::conn::http2, service::Service};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{convert::Infallible, future::Future, pin::pin, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::watch,
    task::JoinSet,
    time,
};
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;

/// What connections may do.
#[derive(Clone, Debug)]
pub struct GrpcTerms {
    /// How many there may be; more wait to be accepted.
    pub connections: usize,
    /// How many requests of one may be in flight.
    pub streams: u32,
    /// How long one may take to agree on TLS, and how long to say that it speaks HTTP/2.
    pub welcome: Duration,
    /// How old one becomes, give or take a tenth, before its client is asked to make another: so that new servers get theirs.
    pub age: Duration,
    /// How long requests in flight may take to end.
    pub drain: Duration,
}

impl Default for GrpcTerms {
    fn default() -> Self {
        Self {
            connections: 10_000,
            streams: 1_024,
            welcome: Duration::from_secs(10),
            age: Duration::from_secs(24 * 60 * 60),
            drain: Duration::from_secs(10),
        }
    }
}

/// How often a client is asked whether it is still there, and how long it may take to say so.
const PING: Duration = Duration::from_secs(60);
const PONG: Duration = Duration::from_secs(20);

pub(super) async fn serve<S>(
    accept: impl Accept,
    tls: Option<TlsAcceptor>,
    service: S,
    terms: GrpcTerms,
    stop: impl Future<Output = ()>,
) where
    S: Answer,
{
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    let mut stop = pin!(stop);
    loop {
        tokio::select! {
            () = &mut stop => break,
            Some(_) = connections.join_next() => {}
            accepted = accept.accept(), if connections.len() < terms.connections => match accepted {
                Ok(stream) => {
                    let (tls, service, terms) = (tls.clone(), service.clone(), terms.clone());
                    connections.spawn(welcome(stream, tls, service, terms, stopped.clone()));
                }
                Err(error) => {
                    // Out of descriptors, mostly: those who wait are served when others go.
                    tracing::warn!(%error, "a connection was not accepted");
                    time::sleep(TICK).await;
                }
            },
        }
    }
    drop((accept, stopping));
    let ended = async { while connections.join_next().await.is_some() {} };
    // Whoever has not ended by then is cut off.
    let _ = time::timeout(terms.drain, ended).await;
}

/// Whatever answers requests.
pub(super) trait Answer:
    Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
{
}

impl<S> Answer for S where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

async fn welcome<I, S: Answer>(
    stream: I,
    tls: Option<TlsAcceptor>,
    service: S,
    terms: GrpcTerms,
    stopped: watch::Receiver<()>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Some(tls) = tls else { return speak(stream, service, terms, stopped).await };
    match time::timeout(terms.welcome, tls.accept(stream)).await {
        Ok(Ok(stream)) => speak(stream, service, terms, stopped).await,
        Ok(Err(error)) => tracing::debug!(%error, "a client did not agree on TLS"),
        Err(_) => tracing::debug!("a client took too long to agree on TLS"),
    }
}

async fn speak<I, S: Answer>(stream: I, service: S, terms: GrpcTerms, mut stopped: watch::Receiver<()>)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (greeting, _) = Greeting::new(stream, terms.welcome);
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .max_concurrent_streams(terms.streams)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG)
        .serve_connection(TokioIo::new(greeting), service);
    let mut connection = pin!(connection);
    let age = terms.age.mul_f64(0.9 + fastrand::f64() * 0.2);
    tokio::select! {
        _ = connection.as_mut() => return,
        _ = stopped.changed() => {}
        () = time::sleep(age) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = time::timeout(terms.drain, connection).await;
}
