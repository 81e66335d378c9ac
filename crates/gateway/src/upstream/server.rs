//! One server, and the connections to it that one worker keeps.

use super::{
    ResponseDeadline, ServerHealth, UpstreamConfig, UpstreamConnection, UpstreamSendError, UpstreamTimeouts,
    config::UpstreamServerConfig, health::ServerCounters,
};
use crate::{client::LocalExecutor, deadline::Deadlines, proxy::RequestBody};
use http::{
    HeaderValue, Request, Response, StatusCode, Uri, header,
    uri::{PathAndQuery, Scheme},
};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::TokioIo;
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io,
    net::SocketAddr,
    pin::pin,
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::Poll,
};
use tidegate_core::Micros;
use tidegate_http_server::Stream;
use tidegate_observe::ServerState;
use tidegate_overload::{Breaker, CallPermit, Rejection};
use tidegate_policy::model::Protocol;
use tokio::{net::TcpStream, time};

/// The most that a server may send of one answer over HTTP/2 before its client has taken it, and of all answers together.
const STREAM_WINDOW: u32 = 128 * 1_024;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// A server, in one worker.
pub(crate) struct UpstreamEndpoint {
    config: UpstreamServerConfig,
    address: Option<SocketAddr>,
    pub(crate) protocol: Protocol,
    timeouts: UpstreamTimeouts,
    deadlines: Rc<Deadlines>,
    max_idle_connections: usize,
    /// Nobody's, the one that was used last on top.
    #[allow(clippy::vec_box, reason = "they are handed on as they are")]
    idle: RefCell<Vec<Box<UpstreamConnection>>>,
    /// The one connection of HTTP/2, which all requests share.
    http2: RefCell<Option<http2::SendRequest<RequestBody>>>,
    /// Only this worker writes it.
    counters: Arc<ServerCounters>,
}

/// A request that is with a server, until it is dropped.
pub(crate) struct InFlightGuard {
    pub(crate) server: Rc<UpstreamEndpoint>,
}

impl UpstreamEndpoint {
    pub(super) fn new(
        server: &UpstreamServerConfig,
        plan: &UpstreamConfig,
        watch: &Rc<Deadlines>,
    ) -> Rc<Self> {
        Rc::new(Self {
            config: server.clone(),
            address: server.address(),
            protocol: plan.protocol,
            timeouts: plan.timeouts,
            deadlines: watch.clone(),
            max_idle_connections: plan.max_idle_connections,
            idle: RefCell::default(),
            http2: RefCell::default(),
            counters: server.health.register_worker(),
        })
    }

    pub(super) fn weight(&self) -> u64 {
        self.config.weight
    }

    pub(super) fn name(&self) -> &str {
        self.config.authority.as_str()
    }

    /// Its scheme, host and port.
    #[cfg(feature = "otel")]
    pub(crate) fn endpoint(&self) -> (&'static str, &str, u16) {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        (scheme, &self.config.host, self.config.port)
    }

    pub(super) fn host_header(&self) -> HeaderValue {
        self.config.host_header()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self) -> &Arc<ServerHealth> {
        &self.config.health
    }

    pub(super) fn state(&self) -> ServerState {
        self.config.health.state(self.deadlines.now())
    }

    /// Leave to ask it; `Err` while its breaker is open.
    #[inline]
    pub(crate) fn try_acquire(&self) -> Result<Option<CallPermit<Arc<Breaker>>>, Rejection> {
        self.config.health.try_acquire()
    }

    /// It answered, after this time.
    #[inline]
    pub(crate) fn on_response(&self, took: Micros) {
        self.counters.responses.add(1);
        self.counters.latency.record(took, 1);
        self.config.health.on_response(self.name());
    }

    /// It did not.
    pub(crate) fn on_failure(&self) {
        self.counters.failures.add(1);
        self.config.health.on_failure(self.deadlines.now(), self.name());
    }

    /// A request is on its way here.
    #[inline]
    pub(crate) fn begin_request(self: &Rc<Self>) -> InFlightGuard {
        self.counters.in_flight.store(self.in_flight() + 1, Ordering::Relaxed);
        InFlightGuard { server: self.clone() }
    }

    /// A connection that was used before.
    #[inline]
    pub(crate) fn take_idle(&self) -> Option<Box<UpstreamConnection>> {
        self.idle.borrow_mut().pop()
    }

    /// The same, if it was used a moment ago.
    #[inline]
    pub(crate) fn take_recent(&self) -> Option<Box<UpstreamConnection>> {
        self.idle.borrow_mut().pop_if(|line| !line.is_stale(self.deadlines.now()))
    }

    /// Whether a connection has been idle for so long that its server may be closing it at this moment.
    #[inline]
    pub(crate) fn is_stale(&self, line: &UpstreamConnection) -> bool {
        line.is_stale(self.deadlines.now())
    }

    /// Keeps a connection for the next request, if it can have one.
    pub(crate) fn return_idle(&self, mut line: Box<UpstreamConnection>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.max_idle_connections && line.finish_response(self.deadlines.now()) {
            idle.push(line);
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<UpstreamConnection>> {
        let stream = self.connect_stream().await?;
        UpstreamConnection::new(stream, self.response_deadline()).await.map_err(io::Error::other)
    }

    /// Sends a request over the connection that all share, or a new one.
    pub(crate) async fn send_http2(
        &self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, ResponseDeadline), UpstreamSendError> {
        let open = self.http2.borrow().as_ref().filter(|shared| !shared.is_closed()).cloned();
        let mut shared = match open {
            Some(shared) => shared,
            None => match self.http2_sender().await {
                Ok(shared) => shared,
                Err(error) => return Err(UpstreamSendError::Unreachable(error, Box::new(request))),
            },
        };
        let mut pace = self.response_deadline();
        pace.start(request.body().progress());
        let mut answer = pin!(shared.try_send_request(self.with_authority(request)));
        let answer = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer.map_err(UpstreamSendError::new)),
            Poll::Pending if pace.poll_expired(context) => Poll::Ready(Err(UpstreamSendError::Timeout)),
            Poll::Pending => Poll::Pending,
        });
        let answer = answer.await?;
        Ok((answer, pace))
    }

    fn response_deadline(&self) -> ResponseDeadline {
        ResponseDeadline::new(self.timeouts, self.deadlines.new_deadline())
    }

    async fn http2_sender(&self) -> io::Result<http2::SendRequest<RequestBody>> {
        let stream = self.connect_stream().await?;
        let handshake = http2::Builder::new(LocalExecutor)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream));
        let (shared, connection) = handshake.await.map_err(io::Error::other)?;
        tokio::task::spawn_local(connection);
        *self.http2.borrow_mut() = Some(shared.clone());
        Ok(shared)
    }

    /// HTTP/2 says the host in the address.
    fn with_authority(&self, mut request: Request<RequestBody>) -> Request<RequestBody> {
        let host = request.headers_mut().remove(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()?.parse().ok());
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.config.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(host.unwrap_or_else(|| self.config.authority.clone()));
        parts.path_and_query =
            Some(request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        request
    }

    /// Sends a request over a connection that is closed after it; the status of its answer.
    pub(super) async fn send_once(self: &Rc<Self>, request: Request<RequestBody>) -> Option<StatusCode> {
        match self.protocol {
            Protocol::Http1 => {
                let mut ask = self.connect().await.ok()?.send(request);
                let answer = poll_fn(|context| ask.poll(context)).await;
                answer.ok().map(|answer| answer.status())
            }
            Protocol::Http2 => self.send_http2(request).await.ok().map(|(answer, _)| answer.status()),
        }
    }

    async fn connect_stream(&self) -> io::Result<Stream> {
        let dialled = async {
            let stream = match self.address {
                Some(address) => TcpStream::connect(address).await?,
                None => TcpStream::connect((self.config.host.as_str(), self.config.port)).await?,
            };
            stream.set_nodelay(true)?;
            Ok(match &self.config.tls {
                Some((connector, name)) => {
                    Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?.into()))
                }
                None => Stream::Plain(stream),
            })
        };
        time::timeout(self.timeouts.connect, dialled).await?
    }

    /// Closes connections that have been idle for long, and those that the server has closed.
    pub(super) fn close_idle(&self) {
        let now = self.deadlines.now();
        self.idle.borrow_mut().retain_mut(|line| line.is_reusable(now));
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.server.counters.in_flight.store(self.server.in_flight() - 1, Ordering::Relaxed);
    }
}
