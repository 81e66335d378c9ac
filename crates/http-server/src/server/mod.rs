//! The HTTP server of everything but the gateway's own traffic: the decision API, the admin API and the Envoy service.
//!
//! ```text
//!   accept, with backoff ─▶ connection limit ─▶ TLS handshake ─▶ hyper, with idle timeout ─▶ drain at shutdown
//! ```

mod activity;
mod listener;

pub use listener::{Accept, BoundListener, Listener, Scheme, refresh_certificates, tls_accept};

use crate::{StartupError, events};
use activity::{Activity, TrackedIo};
use axum::{BoxError, body::Body};
use bytes::Bytes;
use futures_util::{FutureExt as _, future::BoxFuture};
use http::{Request, Response};
use hyper::{
    body::Incoming,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
};
use std::{
    convert::Infallible,
    future::{Future, pending},
    net::SocketAddr,
    num::NonZeroUsize,
    pin::{Pin, pin},
    sync::Arc,
    thread,
    time::Duration,
};
use tidegate_policy::model::{self, Connections};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
    time,
};

/// A service that any thread can call.
pub trait HttpService:
    Service<Request<Incoming>, Response = Response<Self::ResponseBody>, Error = Infallible, Future: Send>
    + Send
    + Sync
    + 'static
{
    /// The body of its responses.
    type ResponseBody: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static;
}

impl<B, S> HttpService for S
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible, Future: Send>
        + Send
        + Sync
        + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type ResponseBody = B;
}

/// A service, and the limits of its connections. Clones share the connection limit.
#[derive(Clone)]
pub struct HttpServer {
    service: BoxService,
    protocol: Protocol,
    connections: Arc<Semaphore>,
    max_header_size: usize,
    handshake_timeout: Duration,
    drain_timeout: Duration,
}

/// Completes when a server is to stop.
pub type ShutdownSignal<'a> = Pin<&'a mut (dyn Future<Output = ()> + Send + 'a)>;

/// A service and a connection behind a pointer: hyper's server is large, and so it is compiled once for all of them.
type BoxService = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;
type BoxStream = Box<dyn Io>;

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<I: AsyncRead + AsyncWrite + Send + Unpin> Io for I {}

#[derive(Clone, Copy)]
enum Protocol {
    /// HTTP/1.1 or HTTP/2. Connections beyond the limit are closed: idle ones must not delay those behind them.
    Http { idle_timeout: Duration },
    /// HTTP/2 with pings. Connections beyond the limit wait in the backlog.
    Grpc { max_age: Duration },
}

/// When connections are closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shutdown {
    Never,
    /// After the request in flight. A connection that has sent nothing yet may send one request.
    AfterFirstRequest,
    /// After the request in flight.
    Now,
}

/// Bytes of a buffer in addition to the maximum size of a head.
const BUFFER_RESERVE: usize = 8_192;
/// Limits of gRPC connections.
const MAX_GRPC_CONNECTIONS: usize = 10_000;
const MAX_GRPC_STREAMS: u32 = 1_024;
const MAX_GRPC_HEADER_SIZE: usize = 16 * 1_024;
/// How long a gRPC client may take for the TLS handshake, and then for the HTTP/2 preface.
const GRPC_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const GRPC_PING_INTERVAL: Duration = Duration::from_secs(60);
const GRPC_PING_TIMEOUT: Duration = Duration::from_secs(20);
/// The connection preface of HTTP/2.
pub const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl HttpServer {
    /// A server of HTTP/1.1 and HTTP/2.
    pub fn new(service: impl HttpService, settings: &Connections) -> Self {
        let max_connections = usize::try_from(settings.max).unwrap_or(usize::MAX);
        Self {
            service: boxed(service),
            protocol: Protocol::Http { idle_timeout: settings.header_timeout.max(settings.idle_timeout) },
            connections: Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS))),
            max_header_size: usize::try_from(settings.header_size).unwrap_or(usize::MAX),
            handshake_timeout: settings.header_timeout,
            drain_timeout: settings.drain_timeout,
        }
    }

    /// A server of gRPC. Clients reconnect after `max_age` ± 10 %, so that new servers get connections.
    pub fn grpc(service: impl HttpService, max_age: Duration, drain_timeout: Duration) -> Self {
        Self {
            service: boxed(service),
            protocol: Protocol::Grpc { max_age },
            connections: Arc::new(Semaphore::new(MAX_GRPC_CONNECTIONS)),
            max_header_size: MAX_GRPC_HEADER_SIZE,
            handshake_timeout: GRPC_HANDSHAKE_TIMEOUT,
            drain_timeout,
        }
    }

    fn builder(&self) -> auto::Builder<TokioExecutor> {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        let max_header_list_size = u32::try_from(self.max_header_size).unwrap_or(u32::MAX);
        builder.http2().timer(TokioTimer::new()).max_header_list_size(max_header_list_size);
        match self.protocol {
            Protocol::Http { idle_timeout } => {
                let max_buffer_size = self.max_header_size.saturating_add(BUFFER_RESERVE);
                // Most heads and bodies are small; one buffer is cheaper to send than two.
                builder.http1().header_read_timeout(None).max_buf_size(max_buffer_size).writev(false);
                builder.http2().keep_alive_interval(idle_timeout);
                builder
            }
            Protocol::Grpc { .. } => {
                builder
                    .http2()
                    .max_concurrent_streams(MAX_GRPC_STREAMS)
                    .keep_alive_interval(GRPC_PING_INTERVAL)
                    .keep_alive_timeout(GRPC_PING_TIMEOUT);
                builder.http2_only()
            }
        }
    }

    /// The next connection within the limit.
    async fn accept<L: Accept>(&self, listener: &Listener<L>) -> (L::Stream, OwnedSemaphorePermit) {
        loop {
            let reserved = match self.protocol {
                Protocol::Http { .. } => None,
                Protocol::Grpc { .. } => self.connections.clone().acquire_owned().await.ok(),
            };
            let (stream, _) = listener.accept().await;
            let permit = reserved.or_else(|| self.connections.clone().try_acquire_owned().ok());
            if let Some(permit) = permit {
                return (stream, permit);
            }
        }
    }

    /// Serves on the current runtime until `stop`, and then until the requests in flight have ended.
    pub async fn serve_until<L: Accept>(self, listener: Listener<L>, stop: impl Future<Output = ()>) {
        let _refresh = refresh_certificates(listener.certificate().into_iter().collect());
        let (shutdown, receiver) = watch::channel(Shutdown::Never);
        let stop = async {
            stop.await;
            let _ = shutdown.send(Shutdown::Now);
            pending::<()>().await;
        };
        tokio::select! {
            () = self.run(listener, receiver) => {}
            () = stop => {}
        }
    }

    /// Accepts and serves connections until shutdown, then drains them. Connections left after the drain timeout are closed.
    async fn run<L: Accept>(self, listener: Listener<L>, mut shutdown: watch::Receiver<Shutdown>) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, permit) = tokio::select! {
                _ = shutdown.changed() => break,
                Some(_) = connections.join_next() => continue,
                accepted = self.accept(&listener) => accepted,
            };
            let (server, certificate, shutdown) = (self.clone(), listener.certificate(), shutdown.clone());
            connections.spawn(async move {
                if let Some(stream) = tls_accept(stream, certificate, server.handshake_timeout).await {
                    server.serve_connection(Box::new(stream), shutdown).await;
                }
                drop(permit);
            });
        }
        drop(listener);
        let drained = async { while connections.join_next().await.is_some() {} };
        let _ = time::timeout(self.drain_timeout, drained).await;
    }

    /// Boxed, so that it is compiled with this crate.
    fn serve_connection(
        self,
        stream: BoxStream,
        shutdown: watch::Receiver<Shutdown>,
    ) -> BoxFuture<'static, ()> {
        Box::pin(self.serve_requests(stream, shutdown))
    }

    async fn serve_requests(self, stream: BoxStream, mut shutdown: watch::Receiver<Shutdown>) {
        let (builder, activity, inner) = (self.builder(), Arc::new(Activity::default()), self.service);
        let io = TokioIo::new(TrackedIo { io: stream, activity: activity.clone() });
        let requests = activity.clone();
        let service = service_fn(move |request| {
            let in_flight = requests.begin_request();
            inner(request).map(move |response| {
                drop(in_flight);
                Ok::<_, Infallible>(response)
            })
        });
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut timeout = pin!(async {
            match self.protocol {
                Protocol::Http { idle_timeout } => activity.wait_idle(idle_timeout).await,
                Protocol::Grpc { .. } => {
                    time::sleep(self.handshake_timeout).await;
                    // hyper closes a connection that starts with anything but the preface.
                    if activity.bytes_read() >= HTTP2_PREFACE.len() as u64 {
                        pending::<()>().await;
                    }
                }
            }
        });
        let shutdown = async {
            // A dropped sender means the same as `Now`.
            let requested = shutdown.wait_for(|value| *value != Shutdown::Never).await.map(|value| *value);
            if requested.is_ok_and(|value| value == Shutdown::AfterFirstRequest) {
                tokio::select! {
                    () = activity.wait_first_byte() => {}
                    _ = shutdown.wait_for(|value| *value == Shutdown::Now) => {}
                }
            }
        };
        let aged = async {
            match self.protocol {
                Protocol::Http { .. } => pending().await,
                Protocol::Grpc { max_age } => time::sleep(max_age.mul_f64(0.9 + fastrand::f64() * 0.2)).await,
            }
        };
        tokio::select! {
            _ = connection.as_mut() => return,
            () = timeout.as_mut() => return,
            () = shutdown => {}
            () = aged => {}
        }
        connection.as_mut().graceful_shutdown();
        tokio::select! {
            _ = connection => {}
            () = timeout => {}
            () = time::sleep(self.drain_timeout) => {}
        }
    }

    fn start(
        &self,
        listener: &BoundListener,
        name: &'static str,
        threads: NonZeroUsize,
    ) -> Result<ServerThreads, StartupError> {
        let (shutdown, receiver) = watch::channel(Shutdown::Never);
        for number in 0..threads.get() {
            let (listener, server, receiver) = (listener.try_clone()?, self.clone(), receiver.clone());
            let serve = move || {
                build_runtime()?.block_on(async {
                    server.run(listener.into_listener()?, receiver).await;
                    Ok::<_, StartupError>(())
                })
            };
            let log = move |error: StartupError| {
                events::ServerThreadFailed { thread: name, error: &error }.emit();
            };
            let thread = thread::Builder::new().name(format!("{name}-{number}"));
            thread.spawn(move || serve().unwrap_or_else(log)).map_err(StartupError::System)?;
        }
        let _refresh = refresh_certificates(listener.certificate().into_iter().collect());
        Ok(ServerThreads { shutdown, _refresh })
    }
}

fn boxed(service: impl HttpService) -> BoxService {
    Arc::new(move |request| {
        let response = service.call(request);
        Box::pin(async move {
            match response.await {
                Ok(response) => response.map(Body::new),
                Err(never) => match never {},
            }
        })
    })
}

/// Builds a runtime for one thread.
pub fn build_runtime() -> Result<tokio::runtime::LocalRuntime, StartupError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build_local(tokio::runtime::LocalOptions::default())
        .map_err(StartupError::System)
}

/// A bound listener and, once started, its threads. On drop, the threads drain and end.
pub struct ThreadedListener {
    bound: BoundListener,
    threads: Option<ServerThreads>,
}

impl ThreadedListener {
    /// Binds a listener; reuses the socket of `existing` if it was declared with the same address.
    pub fn bind(declared: &model::ListenerSpec, existing: Option<&Self>) -> Result<Self, StartupError> {
        let existing = existing.map(|existing| &existing.bound);
        Ok(Self { bound: BoundListener::bind_or_reuse(declared, existing)?, threads: None })
    }

    /// The address that it is bound to.
    pub fn address(&self) -> SocketAddr {
        self.bound.address()
    }

    /// Starts this many threads.
    pub fn start(
        &mut self,
        server: &HttpServer,
        name: &'static str,
        threads: NonZeroUsize,
    ) -> Result<(), StartupError> {
        self.threads = Some(server.start(&self.bound, name, threads)?);
        Ok(())
    }

    /// Closes the listener after another one has replaced it. Connections that it accepted may send one request.
    pub fn drain(self) -> Option<ServerThreads> {
        self.threads.inspect(|threads| _ = threads.shutdown.send(Shutdown::AfterFirstRequest))
    }

    /// Closes the listener, and returns when the requests in flight have ended.
    pub async fn shutdown(self) {
        drop(self.bound);
        if let Some(threads) = self.threads {
            threads.shutdown().await;
        }
    }
}

/// The threads of one listener. On drop, they drain and end.
pub struct ServerThreads {
    shutdown: watch::Sender<Shutdown>,
    _refresh: JoinSet<()>,
}

impl ServerThreads {
    /// Whether all threads have ended.
    pub fn is_finished(&self) -> bool {
        self.shutdown.is_closed()
    }

    /// Returns when the requests in flight have ended.
    pub async fn shutdown(self) {
        let _ = self.shutdown.send(Shutdown::Now);
        self.shutdown.closed().await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed step fails the test")]
#[allow(clippy::disallowed_methods, reason = "time is paused")]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{Empty, StreamBody};
    use hyper::body::Frame;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };

    const IDLE: Duration = Duration::from_secs(60);
    const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n";

    /// Sends `bytes` and reads until the connection is closed; returns how long that took, and what was read.
    async fn exchange(server: HttpServer, bytes: &[u8]) -> (Duration, Vec<u8>) {
        let (mut client, stream) = tokio::io::duplex(1 << 16);
        let (_shutdown, receiver) = watch::channel(Shutdown::Never);
        let start = Instant::now();
        let serving = tokio::spawn(server.serve_connection(Box::new(stream), receiver));
        client.write_all(bytes).await.unwrap();
        let mut read = Vec::new();
        client.read_to_end(&mut read).await.unwrap();
        serving.await.unwrap();
        (start.elapsed(), read)
    }

    /// Like `exchange`, with a server that responds after `delay`, in chunks with a pause before each.
    async fn respond(bytes: &[u8], delay: Duration, (chunks, pause): (u32, Duration)) -> (Duration, String) {
        let service = service_fn(move |_: Request<Incoming>| async move {
            time::sleep(delay).await;
            let body = stream::unfold(chunks, move |left| async move {
                let left = left.checked_sub(1)?;
                time::sleep(pause).await;
                Some((Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"piece"))), left))
            });
            Ok::<_, Infallible>(Response::new(StreamBody::new(Box::pin(body))))
        });
        let settings = Connections { idle_timeout: IDLE, header_timeout: IDLE, ..Connections::default() };
        let (elapsed, read) = exchange(HttpServer::new(service, &settings), bytes).await;
        (elapsed, String::from_utf8(read).unwrap())
    }

    fn is_idle_timeout(elapsed: Duration, since: Duration) -> bool {
        (since + IDLE..=since + IDLE * 3 / 2).contains(&elapsed)
    }

    #[tokio::test(start_paused = true)]
    async fn incomplete_head_is_closed_after_idle_timeout() {
        for bytes in [&b""[..], b"P", &HTTP2_PREFACE[..23], &REQUEST[..20]] {
            let (elapsed, read) = respond(bytes, Duration::ZERO, (1, Duration::ZERO)).await;
            assert!(read.is_empty() && is_idle_timeout(elapsed, Duration::ZERO), "{elapsed:?} {read}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_next_request_is_closed_after_idle_timeout() {
        let (elapsed, read) = respond(REQUEST, Duration::ZERO, (1, Duration::ZERO)).await;
        assert!(read.contains("piece") && is_idle_timeout(elapsed, Duration::ZERO), "{elapsed:?} {read}");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_response_is_not_idle() {
        let (elapsed, read) = respond(REQUEST, IDLE * 10, (1, Duration::ZERO)).await;
        assert!(read.contains("piece") && is_idle_timeout(elapsed, IDLE * 10), "{elapsed:?} {read}");
        let (elapsed, read) = respond(REQUEST, Duration::ZERO, (20, IDLE / 2)).await;
        assert_eq!(read.matches("piece").count(), 20);
        assert!(is_idle_timeout(elapsed, IDLE * 10), "{elapsed:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn grpc_client_must_send_preface_in_time() {
        let close = |bytes: &'static [u8]| {
            let service = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
            });
            exchange(HttpServer::grpc(service, IDLE * 1_000, IDLE), bytes)
        };
        for bytes in [&b""[..], b"P", &HTTP2_PREFACE[..23]] {
            assert_eq!(close(bytes).await.0, GRPC_HANDSHAKE_TIMEOUT, "{bytes:?}");
        }
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"PRI * HTTP/2.1\r\n\r\nSM\r\n\r\n"] {
            assert_eq!(close(bytes).await.0, Duration::ZERO, "{bytes:?}");
        }
        assert_eq!(
            close(HTTP2_PREFACE).await.0,
            GRPC_PING_INTERVAL + GRPC_PING_TIMEOUT,
            "the client does not respond to pings"
        );
    }
}
