//! One server, and the connection pool of one worker.

use super::{
    ResponseDeadline, ServerHealth, UpstreamConfig, UpstreamConnection, UpstreamRequest, UpstreamSendError,
    UpstreamTimeouts,
    config::UpstreamServerConfig,
    health::ServerCounters,
    http2::{Http2Permit, Http2Pool, Http2Upload},
};
use crate::{deadline::Deadlines, http1::ParsedResponse, proxy::RequestBody};
use http::{
    Method, Request, Response, StatusCode, Uri, header,
    uri::{Authority, PathAndQuery, Scheme},
};
use hyper::body::{Body, Incoming};
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    io, iter,
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
use tidegate_policy::{head::ParsedRequest, model::Protocol};
use tokio::{net::TcpStream, time};

/// A server in one worker.
pub(crate) struct UpstreamEndpoint {
    config: UpstreamServerConfig,
    address: Option<SocketAddr>,
    pub(crate) protocol: Protocol,
    timeouts: UpstreamTimeouts,
    deadlines: Rc<Deadlines>,
    max_idle_connections: usize,
    /// Idle connections, the most recently used last.
    #[allow(clippy::vec_box, reason = "connections are moved as boxes")]
    idle: RefCell<Vec<Box<UpstreamConnection>>>,
    /// The HTTP/2 connections, which requests share.
    http2: Http2Pool,
    /// Only this worker writes them.
    counters: Arc<ServerCounters>,
}

/// A response over HTTP/2.
pub(crate) struct Http2Response {
    pub(crate) response: Response<Incoming>,
    pub(crate) deadline: ResponseDeadline,
    pub(crate) permit: Rc<Http2Permit>,
}

/// A request in flight to a server, until it is dropped.
pub(crate) struct InFlightGuard {
    pub(crate) server: Rc<UpstreamEndpoint>,
}

impl UpstreamEndpoint {
    pub(super) fn new(
        server: &UpstreamServerConfig,
        upstream: &UpstreamConfig,
        deadlines: &Rc<Deadlines>,
    ) -> Rc<Self> {
        Rc::new(Self {
            config: server.clone(),
            address: server.address(),
            protocol: upstream.protocol,
            timeouts: upstream.timeouts,
            deadlines: deadlines.clone(),
            max_idle_connections: upstream.max_idle_connections,
            idle: RefCell::default(),
            http2: Http2Pool::default(),
            counters: server.health.register_worker(),
        })
    }

    pub(super) fn weight(&self) -> u64 {
        self.config.weight
    }

    pub(super) fn name(&self) -> &str {
        self.config.authority.as_str()
    }

    /// The scheme, host and port.
    #[cfg(feature = "otel")]
    pub(crate) fn endpoint(&self) -> (&'static str, &str, u16) {
        let scheme = if self.config.tls.is_some() { "https" } else { "http" };
        (scheme, &self.config.host, self.config.port)
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.config.authority
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

    /// Acquires a permit of the circuit breaker; `Err` while it is open.
    #[inline]
    pub(crate) fn try_acquire(&self) -> Result<Option<CallPermit<Arc<Breaker>>>, Rejection> {
        self.config.health.try_acquire()
    }

    /// Records a response with this status after this time.
    #[inline]
    pub(crate) fn on_response(&self, status: u16, took: Micros) {
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        self.counters.responses[class].add(1);
        self.counters.latency.record(took, 1);
        self.config.health.on_response(self.name());
    }

    /// Records a failed request.
    pub(crate) fn on_failure(&self) {
        self.counters.failures.add(1);
        self.config.health.on_failure(self.deadlines.now(), self.name());
    }

    /// Counts a request in flight.
    #[inline]
    pub(crate) fn begin_request(self: &Rc<Self>) -> InFlightGuard {
        self.counters.in_flight.store(self.in_flight() + 1, Ordering::Relaxed);
        InFlightGuard { server: self.clone() }
    }

    /// Takes the most recently used idle connection.
    #[inline]
    pub(crate) fn take_idle(&self) -> Option<Box<UpstreamConnection>> {
        let mut idle = self.idle.borrow_mut();
        iter::from_fn(|| idle.pop()).find_map(|mut connection| connection.is_open().then_some(connection))
    }

    /// Takes an idle connection that is not stale.
    #[inline]
    pub(crate) fn take_recent(&self) -> Option<Box<UpstreamConnection>> {
        let (mut idle, now) = (self.idle.borrow_mut(), self.deadlines.now());
        let recent = || idle.pop_if(|connection| !connection.is_stale(now));
        iter::from_fn(recent).find_map(|mut connection| connection.is_open().then_some(connection))
    }

    /// Returns a connection to the pool, if it can be reused.
    pub(crate) fn return_idle(&self, mut connection: Box<UpstreamConnection>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.max_idle_connections && connection.finish_response(self.deadlines.now()) {
            idle.push(connection);
        }
    }

    /// Opens a new connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<UpstreamConnection>> {
        Ok(UpstreamConnection::new(self.connect_stream().await?, self.response_deadline()))
    }

    /// Sends a request over a HTTP/2 connection with a free stream, or a new one. An error returns the request, if it may be sent again.
    pub(crate) async fn send_http2(
        &self,
        request: UpstreamRequest,
    ) -> Result<Http2Response, (UpstreamSendError, Option<UpstreamRequest>)> {
        let permit = match self.http2.acquire() {
            Some(permit) => permit,
            None => match self.connect_http2().await {
                Ok(permit) => permit,
                Err(error) => return Err((UpstreamSendError::Unreachable(error), Some(request))),
            },
        };
        let UpstreamRequest { head, body } = request;
        let has_body = !body.is_end_stream();
        let mut deadline = self.response_deadline();
        deadline.start(body.progress());
        let mut sender = permit.sender();
        let body = Http2Upload::new(body, &permit);
        let mut response = pin!(sender.try_send_request(self.http2_request(&head, body)));
        let result = poll_fn(|context| match response.as_mut().poll(context) {
            Poll::Ready(response) => Poll::Ready(Some(response)),
            Poll::Pending if deadline.poll_expired(context) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        });
        match result.await {
            Some(Ok(response)) => Ok(Http2Response { response, deadline, permit }),
            None => Err((UpstreamSendError::Timeout, None)),
            Some(Err(mut error)) => Err(match error.take_message() {
                // The request was not sent.
                Some(unsent) => {
                    let body = unsent.into_body().into_inner();
                    (UpstreamSendError::Closed, Some(UpstreamRequest { head, body }))
                }
                None if !has_body && is_idempotent(&head) => {
                    (UpstreamSendError::BadResponse, Some(UpstreamRequest { head, body: RequestBody::Empty }))
                }
                None => (UpstreamSendError::BadResponse, None),
            }),
        }
    }

    fn response_deadline(&self) -> ResponseDeadline {
        ResponseDeadline::new(self.timeouts, self.deadlines.new_deadline())
    }

    /// Opens a new HTTP/2 connection.
    async fn connect_http2(&self) -> io::Result<Rc<Http2Permit>> {
        let stream = self.connect_stream().await?;
        self.http2.open(stream, self.deadlines.now()).await
    }

    /// The request for HTTP/2, with the host as its `:authority`.
    fn http2_request(&self, head: &ParsedRequest, body: Http2Upload) -> Request<Http2Upload> {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.config.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        let host = head.fields.get(b"host").and_then(|host| Authority::try_from(host).ok());
        parts.authority = Some(host.unwrap_or_else(|| self.config.authority.clone()));
        let target = PathAndQuery::try_from(head.target());
        parts.path_and_query = Some(target.unwrap_or_else(|_| PathAndQuery::from_static("/")));
        let mut request = Request::new(body);
        *request.method_mut() = Method::from_bytes(head.method().as_bytes()).unwrap_or_default();
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        *request.headers_mut() = head.fields.to_map();
        request.headers_mut().remove(header::HOST);
        request
    }

    /// Sends a request over a new connection, and returns the status of the response.
    pub(super) async fn send_once(self: &Rc<Self>, request: UpstreamRequest) -> Option<StatusCode> {
        match self.protocol {
            Protocol::Http1 => {
                let mut pending = self.connect().await.ok()?.send(request);
                let mut response = ParsedResponse::default();
                poll_fn(|context| pending.poll(&mut response, context)).await.ok()?;
                Some(response.status)
            }
            Protocol::Http2 => Some(self.send_http2(request).await.ok()?.response.status()),
        }
    }

    async fn connect_stream(&self) -> io::Result<Stream> {
        let connecting = async {
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
        time::timeout(self.timeouts.connect, connecting).await?
    }

    /// Closes connections that have been idle for too long, and those that the server has closed.
    pub(super) fn close_idle(&self) {
        let now = self.deadlines.now();
        self.idle.borrow_mut().retain_mut(|connection| connection.is_reusable(now));
        self.http2.close_idle(now);
    }
}

/// Whether sending a request twice has the same effect as sending it once (RFC 9110, 9.2.2).
pub(crate) fn is_idempotent(head: &ParsedRequest) -> bool {
    Method::from_bytes(head.method().as_bytes()).is_ok_and(|method| method.is_idempotent())
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.server.counters.in_flight.store(self.server.in_flight() - 1, Ordering::Relaxed);
    }
}
