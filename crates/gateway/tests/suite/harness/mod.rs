//! Shared by the tests: a gateway on a free port, servers behind it, and a raw TCP client.

#![allow(dead_code, reason = "each test uses a part of it")]

mod log_capture;

pub(crate) use log_capture::LogCapture;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    collections::BTreeMap,
    future::Future,
    net::SocketAddr,
    num::NonZeroUsize,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_core::Percent;
use tidegate_gateway::{Action, Config, Gateway, PolicySource, RequestFilter, run};
use tidegate_http_server::{BoundListener, StartupError};
use tidegate_policy::head::ParsedRequest;
use tidegate_policy::model::{
    AccessLogSpec, Balance, Connections, ForwardedHeaders, ListenerSpec, Protocol, Retries, Timeouts, Tls,
    Upstream, UpstreamServer,
};
use tidegate_rule::Rules;
use tidegate_testkit::servers::ReservedPort;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// The timeout of every step.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens a gateway with a valid policy.
pub(crate) fn open_gateway(source: PolicySource, rules: Rules) -> Gateway {
    // `scripts/keys` searches for this text.
    Gateway::open(source, rules).unwrap_or_else(|error| panic!("invalid policy: {error}"))
}

/// A running gateway.
pub(crate) struct InProcessGateway {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    end: JoinHandle<Result<(), StartupError>>,
}

impl InProcessGateway {
    /// Forwards everything to these servers.
    pub(crate) async fn start(servers: &[&TestBackend]) -> Self {
        Self::start_with(test_config(servers)).await
    }

    /// Forwards everything to the upstream `app`.
    pub(crate) async fn start_with(config: Config) -> Self {
        let app = config.upstream_id("app").unwrap();
        Self::start_with_filter(config, move |_: &ParsedRequest| Action::Forward(app)).await
    }

    pub(crate) async fn start_with_filter(config: Config, filter: impl RequestFilter) -> Self {
        Self::start_with_tls(config, None, filter).await
    }

    pub(crate) async fn start_with_tls(config: Config, tls: Option<Tls>, filter: impl RequestFilter) -> Self {
        let bound =
            BoundListener::bind(&ListenerSpec { name: None, address: ([127, 0, 0, 1], 0).into(), tls })
                .unwrap();
        Self::start_on(config, bound, filter)
    }

    pub(crate) fn start_on(config: Config, bound: BoundListener, filter: impl RequestFilter) -> Self {
        let address = bound.address();
        let (stop, stopped) = oneshot::channel();
        let end = tokio::spawn(run(config, vec![bound], Arc::new(filter), async {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), end }
    }

    pub(crate) async fn connect(&self) -> RawClient {
        RawClient::connect(self.address).await
    }

    /// Starts the shutdown.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Returns the startup error.
    pub(crate) async fn start_error(self) -> String {
        timeout(TEST_TIMEOUT, self.end).await.unwrap().unwrap().unwrap_err().to_string()
    }

    /// Waits until the gateway has stopped.
    pub(crate) async fn wait_stopped(self) {
        timeout(TEST_TIMEOUT, self.end).await.unwrap().unwrap().unwrap();
    }
}

/// The default configuration of the tests.
pub(crate) fn test_config(servers: &[&TestBackend]) -> Config {
    Config {
        connections: Connections::default(),
        upstreams: BTreeMap::from([("app".to_owned(), test_upstream(servers))]),
        trusted_proxies: Vec::new(),
        forwarded_headers: ForwardedHeaders::default(),
        log: AccessLogSpec::default(),
        traces: None,
        roots: tidegate_http_server::Roots::default(),
        workers: NonZeroUsize::MIN,
    }
}

pub(crate) fn test_upstream(servers: &[&TestBackend]) -> Upstream {
    Upstream {
        servers: servers
            .iter()
            .map(|server| UpstreamServer { url: format!("http://{}", server.address), weight: 1 })
            .collect(),
        balance: Balance::default(),
        protocol: Protocol::default(),
        timeouts: Timeouts::default(),
        keep_alive: 8,
        max_fails: 3,
        fail_timeout: Duration::from_secs(10),
        health: None,
        breaker: None,
        retries: Retries { max: 1, budget: Percent::new(20.0).unwrap() },
    }
}

pub(crate) type TestBody = BoxBody<Bytes, std::io::Error>;

pub(crate) fn text_body(text: impl Into<Bytes>) -> TestBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

type TestService = Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<TestBody>> + Send + Sync>;

/// A server behind the gateway.
pub(crate) struct TestBackend {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl TestBackend {
    /// Starts a server that responds to each request.
    pub(crate) async fn start<F, A>(response: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<TestBody>> + Send + 'static,
    {
        Self::start_boxed(Arc::new(move |request| Box::pin(response(request)))).await
    }

    /// One type for all servers, so that hyper's server is compiled once.
    async fn start_boxed(response: TestService) -> Self {
        Self::start_raw(move |stream| {
            let response = response.clone();
            async move {
                let service = service_fn(move |request| {
                    let response = response(request);
                    async move { Ok::<_, std::convert::Infallible>(response.await) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
            }
        })
        .await
    }

    /// Starts a server that responds with the head and body of the request.
    pub(crate) async fn start_echo() -> Self {
        Self::start(|request: Request<Incoming>| async move {
            let mut head = format!("{} {}\n", request.method(), request.uri());
            for (name, value) in request.headers() {
                head += &format!("{name}: {}\n", value.to_str().unwrap());
            }
            let body = request
                .into_body()
                .collect()
                .await
                .map(http_body_util::Collected::to_bytes)
                .unwrap_or_default();
            head += &format!("\n{}", String::from_utf8_lossy(&body));
            Response::new(text_body(head))
        })
        .await
    }

    /// Starts a server that calls `serve` for each connection.
    pub(crate) async fn start_raw<F, A>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> A + Send + Sync + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::start_on(listener, serve)
    }

    pub(crate) fn start_on<F, A>(listener: TcpListener, serve: F) -> Self
    where
        F: Fn(TcpStream) -> A + Send + Sync + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        let accepting = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(stream));
            }
        });
        Self { address, connections, accepting }
    }

    /// The number of accepted connections.
    pub(crate) fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// An address without a listener.
    pub(crate) async fn unreachable() -> Self {
        let port = ReservedPort::reserve().unwrap();
        let address = port.address();
        let accepting = tokio::spawn(async move {
            let _port = port;
            std::future::pending::<()>().await;
        });
        Self { address, connections: Arc::default(), accepting }
    }
}

impl Drop for TestBackend {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A raw TCP client.
pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
}

/// A response as it was received.
#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl RawResponse {
    pub(crate) fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// The values of a request header that the echo server received.
    pub(crate) fn echoed_headers(&self, name: &str) -> Vec<&str> {
        let lines = self.body.lines().skip(1).take_while(|line| !line.is_empty());
        lines
            .filter_map(|line| {
                let (known, value) = line.split_once(": ")?;
                (known == name).then_some(value)
            })
            .collect()
    }
}

impl RawClient {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), read: Vec::new() }
    }

    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a request and reads its response.
    pub(crate) async fn request(&mut self, request: &str) -> RawResponse {
        self.send(request).await;
        self.read_response().await
    }

    pub(crate) async fn get(&mut self, path: &str) -> RawResponse {
        self.request(&format!("GET {path} HTTP/1.1\r\nhost: example.org\r\n\r\n")).await
    }

    /// Reads a head, up to the empty line.
    pub(crate) async fn read_head(&mut self) -> String {
        let head = self.read_until(b"\r\n\r\n").await;
        String::from_utf8(head).unwrap()
    }

    /// Reads a complete response.
    pub(crate) async fn read_response(&mut self) -> RawResponse {
        let head = self.read_head().await;
        let mut response = RawResponse { head, body: String::new() };
        if let Some(length) = response.header("content-length") {
            let length = length.parse().unwrap();
            response.body = String::from_utf8_lossy(&self.read_exact(length).await).into_owned();
        } else if response.header("transfer-encoding") == Some("chunked") {
            loop {
                let line = String::from_utf8(self.read_until(b"\r\n").await).unwrap();
                let length = usize::from_str_radix(line.trim(), 16).unwrap();
                if length == 0 {
                    let rest = self.read_until(b"\r\n").await;
                    response.body += &String::from_utf8(rest).unwrap().replace("\r\n", "");
                    return response;
                }
                response.body += &String::from_utf8(self.read_exact(length).await).unwrap();
                self.read_exact(2).await;
            }
        }
        response
    }

    /// Reads up to these bytes.
    pub(crate) async fn read_until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(place) = self.read.windows(end.len()).position(|bytes| bytes == end) {
                return self.read.drain(..place + end.len()).collect();
            }
            assert!(self.read_more().await > 0, "ended after {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    pub(crate) async fn read_exact(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            assert!(self.read_more().await > 0, "ended after {:?}", String::from_utf8_lossy(&self.read));
        }
        self.read.drain(..length).collect()
    }

    /// Writes more than all buffers hold, so that the peer must read, in pieces of this size.
    pub(crate) async fn send_until_blocked(&mut self, piece: usize) {
        let data = vec![b'a'; piece];
        for _ in 0..(1 << 24) / piece {
            let written =
                timeout(TEST_TIMEOUT, self.stream.write_all(&data)).await.expect("the peer does not read");
            written.unwrap();
        }
    }

    /// Reads until the peer closes the connection.
    pub(crate) async fn read_to_end(&mut self) -> String {
        while self.read_more().await > 0 {}
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }

    async fn read_more(&mut self) -> usize {
        let read =
            timeout(TEST_TIMEOUT, self.stream.read_buf(&mut self.read)).await.expect("nothing was received");
        // A reset ends the connection too.
        read.unwrap_or(0)
    }
}
