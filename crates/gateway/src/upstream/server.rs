//! One server, and the connections to it that one worker keeps.

use super::{Health, Line, Pace, Plan, Times, Unsent, health::ServerCounts, plan::ServerPlan};
use crate::{client::HereOnly, proxy::RequestBody, watch::Watch};
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
pub(crate) struct Server {
    plan: ServerPlan,
    address: Option<SocketAddr>,
    pub(crate) protocol: Protocol,
    times: Times,
    watch: Rc<Watch>,
    keep_alive: usize,
    /// Nobody's, the one that was used last on top.
    #[allow(clippy::vec_box, reason = "they are handed on as they are")]
    idle: RefCell<Vec<Box<Line>>>,
    /// The one connection of HTTP/2, which all requests share.
    shared: RefCell<Option<http2::SendRequest<RequestBody>>>,
    /// Only this worker writes it.
    counts: Arc<ServerCounts>,
}

/// A request that is with a server, until it is dropped.
pub(crate) struct Visit {
    pub(crate) server: Rc<Server>,
}

impl Server {
    pub(super) fn new(server: &ServerPlan, plan: &Plan, watch: &Rc<Watch>) -> Rc<Self> {
        Rc::new(Self {
            plan: server.clone(),
            address: server.address(),
            protocol: plan.protocol,
            times: plan.times,
            watch: watch.clone(),
            keep_alive: plan.keep_alive,
            idle: RefCell::default(),
            shared: RefCell::default(),
            counts: server.health.counted(),
        })
    }

    pub(super) fn weight(&self) -> u64 {
        self.plan.weight
    }

    pub(super) fn name(&self) -> &str {
        self.plan.authority.as_str()
    }

    /// Its scheme, host and port.
    #[cfg(feature = "otel")]
    pub(crate) fn place(&self) -> (&'static str, &str, u16) {
        let scheme = if self.plan.tls.is_some() { "https" } else { "http" };
        (scheme, &self.plan.host, self.plan.port)
    }

    pub(super) fn host_header(&self) -> HeaderValue {
        self.plan.host_header()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.counts.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn health(&self) -> &Arc<Health> {
        &self.plan.health
    }

    pub(super) fn standing(&self) -> ServerState {
        self.plan.health.standing(self.watch.now())
    }

    /// Leave to ask it; `Err` while its breaker is open.
    #[inline]
    pub(crate) fn pass(&self) -> Result<Option<CallPermit<Arc<Breaker>>>, Rejection> {
        self.plan.health.pass()
    }

    /// It answered, after this time.
    #[inline]
    pub(crate) fn answered(&self, took: Micros) {
        self.counts.answers.add(1);
        self.counts.times.record(took, 1);
        self.plan.health.answered(self.name());
    }

    /// It did not.
    pub(crate) fn failed(&self) {
        self.counts.failures.add(1);
        self.plan.health.failed(self.watch.now(), self.name());
    }

    /// A request is on its way here.
    #[inline]
    pub(crate) fn visit(self: &Rc<Self>) -> Visit {
        self.counts.in_flight.store(self.in_flight() + 1, Ordering::Relaxed);
        Visit { server: self.clone() }
    }

    /// A connection that was used before.
    #[inline]
    pub(crate) fn take(&self) -> Option<Box<Line>> {
        self.idle.borrow_mut().pop()
    }

    /// The same, if it was used a moment ago.
    #[inline]
    pub(crate) fn take_fresh(&self) -> Option<Box<Line>> {
        self.idle.borrow_mut().pop_if(|line| !line.is_older(self.watch.now()))
    }

    /// Whether a connection has been idle for so long that its server may be closing it at this moment.
    #[inline]
    pub(crate) fn is_doubtful(&self, line: &Line) -> bool {
        line.is_older(self.watch.now())
    }

    /// Keeps a connection for the next request, if it can have one.
    pub(crate) fn keep(&self, mut line: Box<Line>) {
        let mut idle = self.idle.borrow_mut();
        if idle.len() < self.keep_alive && line.rest(self.watch.now()) {
            idle.push(line);
        }
    }

    /// A new connection.
    pub(crate) async fn connect(&self) -> io::Result<Box<Line>> {
        let stream = self.dial().await?;
        Line::new(stream, self.pace()).await.map_err(io::Error::other)
    }

    /// Sends a request over the connection that all share, or a new one.
    pub(crate) async fn ask_shared(
        &self,
        request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Pace), Unsent> {
        let open = self.shared.borrow().as_ref().filter(|shared| !shared.is_closed()).cloned();
        let mut shared = match open {
            Some(shared) => shared,
            None => match self.share().await {
                Ok(shared) => shared,
                Err(error) => return Err(Unsent::Unreachable(error, Box::new(request))),
            },
        };
        let mut pace = self.pace();
        pace.start(request.body().note());
        let mut answer = pin!(shared.try_send_request(self.addressed(request)));
        let answer = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer.map_err(Unsent::of)),
            Poll::Pending if pace.is_late(context) => Poll::Ready(Err(Unsent::Late)),
            Poll::Pending => Poll::Pending,
        });
        let answer = answer.await?;
        Ok((answer, pace))
    }

    fn pace(&self) -> Pace {
        Pace::new(self.times, self.watch.deadline())
    }

    async fn share(&self) -> io::Result<http2::SendRequest<RequestBody>> {
        let stream = self.dial().await?;
        let handshake = http2::Builder::new(HereOnly)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(TokioIo::new(stream));
        let (shared, connection) = handshake.await.map_err(io::Error::other)?;
        tokio::task::spawn_local(connection);
        *self.shared.borrow_mut() = Some(shared.clone());
        Ok(shared)
    }

    /// HTTP/2 says the host in the address.
    fn addressed(&self, mut request: Request<RequestBody>) -> Request<RequestBody> {
        let host = request.headers_mut().remove(header::HOST);
        let host = host.and_then(|host| host.to_str().ok()?.parse().ok());
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(if self.plan.tls.is_some() { Scheme::HTTPS } else { Scheme::HTTP });
        parts.authority = Some(host.unwrap_or_else(|| self.plan.authority.clone()));
        parts.path_and_query =
            Some(request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
        *request.uri_mut() = Uri::from_parts(parts).unwrap_or_default();
        request
    }

    /// Sends a request over a connection that is closed after it; the status of its answer.
    pub(super) async fn ask_once(self: &Rc<Self>, request: Request<RequestBody>) -> Option<StatusCode> {
        match self.protocol {
            Protocol::Http1 => {
                let mut ask = self.connect().await.ok()?.ask(request);
                let answer = poll_fn(|context| ask.poll(context)).await;
                answer.ok().map(|answer| answer.status())
            }
            Protocol::Http2 => self.ask_shared(request).await.ok().map(|(answer, _)| answer.status()),
        }
    }

    async fn dial(&self) -> io::Result<Stream> {
        let dialled = async {
            let stream = match self.address {
                Some(address) => TcpStream::connect(address).await?,
                None => TcpStream::connect((self.plan.host.as_str(), self.plan.port)).await?,
            };
            stream.set_nodelay(true)?;
            Ok(match &self.plan.tls {
                Some((connector, name)) => {
                    Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?.into()))
                }
                None => Stream::Plain(stream),
            })
        };
        time::timeout(self.times.connect, dialled).await?
    }

    /// Closes connections that have been idle for long, and those that the server has closed.
    pub(super) fn sweep(&self) {
        let now = self.watch.now();
        self.idle.borrow_mut().retain_mut(|line| line.is_fresh(now));
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.server.counts.in_flight.store(self.server.in_flight() - 1, Ordering::Relaxed);
    }
}
