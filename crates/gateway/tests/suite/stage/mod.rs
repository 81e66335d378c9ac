//! What the stories share: a gateway on a free port, servers behind it, and a client that speaks bytes.

#![allow(dead_code, reason = "each story needs a part of it")]

mod told;

pub(crate) use told::Told;

use bytes::Bytes;
use http::{Request, Response, request};
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
use tidegate_gateway::{Action, Config, RequestFilter, run};
use tidegate_http_server::{BoundListener, Fault};
use tidegate_policy::model::{
    AccessLogSpec, Balance, Connections, ForwardedHeaders, ListenerSpec, Protocol, Retries, Timeouts, Tls,
    Upstream, UpstreamServer,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};

/// How long anything may take before a story is wrong.
pub(crate) const LONG: Duration = Duration::from_secs(20);

/// A gateway that serves.
pub(crate) struct Gateway {
    pub(crate) address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    end: JoinHandle<Result<(), Fault>>,
}

impl Gateway {
    /// Forwards everything to these servers.
    pub(crate) async fn before(servers: &[&Server]) -> Self {
        Self::with(config(servers)).await
    }

    /// Forwards everything to the upstream `app`.
    pub(crate) async fn with(config: Config) -> Self {
        let app = config.target("app").unwrap();
        Self::judged(config, move |_: &request::Parts| Action::Forward(app)).await
    }

    pub(crate) async fn judged(config: Config, judge: impl RequestFilter) -> Self {
        Self::listening(config, None, judge).await
    }

    pub(crate) async fn listening(config: Config, tls: Option<Tls>, judge: impl RequestFilter) -> Self {
        let bound =
            BoundListener::bind(&ListenerSpec { name: None, address: ([127, 0, 0, 1], 0).into(), tls })
                .unwrap();
        Self::at(config, bound, judge)
    }

    pub(crate) fn at(config: Config, bound: BoundListener, judge: impl RequestFilter) -> Self {
        let address = bound.address();
        let (stop, stopped) = oneshot::channel();
        let end = tokio::spawn(run(config, vec![bound], Arc::new(judge), async {
            let _ = stopped.await;
        }));
        Self { address, stop: Some(stop), end }
    }

    pub(crate) async fn client(&self) -> Wire {
        Wire::to(self.address).await
    }

    /// Tells it to end.
    pub(crate) fn stop(&mut self) {
        drop(self.stop.take());
    }

    /// Why it did not start.
    pub(crate) async fn fault(self) -> String {
        timeout(LONG, self.end).await.unwrap().unwrap().unwrap_err().to_string()
    }

    /// Waits until it has.
    pub(crate) async fn ended(self) {
        timeout(LONG, self.end).await.unwrap().unwrap().unwrap();
    }
}

/// What the stories start from.
pub(crate) fn config(servers: &[&Server]) -> Config {
    Config {
        connections: Connections::default(),
        upstreams: BTreeMap::from([("app".to_owned(), upstream(servers))]),
        trusted: Vec::new(),
        introduce: ForwardedHeaders::default(),
        log: AccessLogSpec::default(),
        traces: None,
        roots: tidegate_http_server::Roots::default(),
        workers: NonZeroUsize::MIN,
    }
}

pub(crate) fn upstream(servers: &[&Server]) -> Upstream {
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

pub(crate) type Body = BoxBody<Bytes, std::io::Error>;

pub(crate) fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never| match never {}).boxed()
}

/// A server behind the gateway.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

impl Server {
    /// One that answers each request.
    pub(crate) async fn start<F, A>(answer: F) -> Self
    where
        F: Fn(Request<Incoming>) -> A + Clone + Send + Sync + 'static,
        A: Future<Output = Response<Body>> + Send + 'static,
    {
        Self::raw(move |stream| {
            let answer = answer.clone();
            async move {
                let service = service_fn(move |request| {
                    let answer = answer(request);
                    async move { Ok::<_, std::convert::Infallible>(answer.await) }
                });
                let _ = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service)
                    .with_upgrades()
                    .await;
            }
        })
        .await
    }

    /// One that answers with the head that came in.
    pub(crate) async fn mirror() -> Self {
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
            Response::new(text(head))
        })
        .await
    }

    /// One that does with each connection whatever it likes.
    pub(crate) async fn raw<F, A>(serve: F) -> Self
    where
        F: Fn(TcpStream) -> A + Send + Sync + 'static,
        A: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, serve)
    }

    pub(crate) fn on<F, A>(listener: TcpListener, serve: F) -> Self
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

    /// Connections that it was given so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// An address at which nobody listens.
    pub(crate) async fn nobody() -> Self {
        let server = Self::raw(|_| async {}).await;
        server.accepting.abort();
        while TcpStream::connect(server.address).await.is_ok() {
            tokio::task::yield_now().await;
        }
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// A client that speaks bytes.
pub(crate) struct Wire {
    pub(crate) stream: TcpStream,
    read: Vec<u8>,
}

/// An answer, as it came.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn status(&self) -> u16 {
        self.head[9..12].parse().unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (known, value) = line.split_once(':')?;
            known.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    /// A line of the head that a mirror saw.
    pub(crate) fn seen(&self, name: &str) -> Vec<&str> {
        let lines = self.body.lines().skip(1).take_while(|line| !line.is_empty());
        lines
            .filter_map(|line| {
                let (known, value) = line.split_once(": ")?;
                (known == name).then_some(value)
            })
            .collect()
    }
}

impl Wire {
    pub(crate) async fn to(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), read: Vec::new() }
    }

    pub(crate) fn of(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.unwrap();
    }

    /// Sends a request and reads its answer.
    pub(crate) async fn ask(&mut self, request: &str) -> Answer {
        self.send(request).await;
        self.answer().await
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.ask(&format!("GET {path} HTTP/1.1\r\nhost: example.org\r\n\r\n")).await
    }

    /// Reads a head, up to the empty line.
    pub(crate) async fn head(&mut self) -> String {
        let head = self.until(b"\r\n\r\n").await;
        String::from_utf8(head).unwrap()
    }

    /// Reads an answer whole.
    pub(crate) async fn answer(&mut self) -> Answer {
        let head = self.head().await;
        let mut answer = Answer { head, body: String::new() };
        if let Some(length) = answer.header("content-length") {
            let length = length.parse().unwrap();
            answer.body = String::from_utf8(self.exactly(length).await).unwrap();
        } else if answer.header("transfer-encoding") == Some("chunked") {
            loop {
                let line = String::from_utf8(self.until(b"\r\n").await).unwrap();
                let length = usize::from_str_radix(line.trim(), 16).unwrap();
                if length == 0 {
                    let rest = self.until(b"\r\n").await;
                    answer.body += &String::from_utf8(rest).unwrap().replace("\r\n", "");
                    return answer;
                }
                answer.body += &String::from_utf8(self.exactly(length).await).unwrap();
                self.exactly(2).await;
            }
        }
        answer
    }

    /// Reads up to these bytes.
    pub(crate) async fn until(&mut self, end: &[u8]) -> Vec<u8> {
        loop {
            if let Some(place) = self.read.windows(end.len()).position(|bytes| bytes == end) {
                return self.read.drain(..place + end.len()).collect();
            }
            assert!(self.more().await > 0, "ended after {:?}", String::from_utf8_lossy(&self.read));
        }
    }

    pub(crate) async fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.read.len() < length {
            assert!(self.more().await > 0, "ended after {:?}", String::from_utf8_lossy(&self.read));
        }
        self.read.drain(..length).collect()
    }

    /// Writes more than any buffer holds, and the other side has to take it.
    pub(crate) async fn flood(&mut self) {
        let piece = [b'a'; 1 << 16];
        for _ in 0..256 {
            let written = timeout(LONG, self.stream.write_all(&piece)).await.expect("nothing was taken");
            written.unwrap();
        }
    }

    /// Reads until the other side ends; what came.
    pub(crate) async fn rest(&mut self) -> String {
        while self.more().await > 0 {}
        String::from_utf8_lossy(&std::mem::take(&mut self.read)).into_owned()
    }

    async fn more(&mut self) -> usize {
        let read = timeout(LONG, self.stream.read_buf(&mut self.read)).await.expect("nothing came");
        // A connection that is reset has ended, too.
        read.unwrap_or(0)
    }
}
