//! Bandwidth of requests and responses, over real sockets and in virtual time: the clock of the policy advances by one
//! millisecond when all bytes that the rate allows have arrived, so no test depends on the speed of the machine.

use crate::harness::{
    InProcessGateway, RawClient, TEST_TIMEOUT, TestBackend, TestBody, test_config, text_body,
};
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, Version, header};
use http_body_util::{BodyExt, Channel, Empty, StreamBody};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_gateway::{
    Action, ConnectionInfo, FilterContext, FilterDecision, FilterResult, ParsedBody, Rates, RequestFilter,
    UpstreamId,
};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    Policy,
    compile::{Compiler, PolicyAdmission, PolicyGate, PolicyResult},
    head::{HttpRequestHead, ParsedRequest},
    model::Protocol,
};
use tidegate_rule::{Evaluation, Rules};
use tokio::{net::TcpStream, sync::Notify, task::JoinHandle, time::timeout};

/// Evaluates a policy on a manual clock, and forwards everything.
struct RateFilter {
    gate: PolicyGate,
    app: UpstreamId,
}

impl RequestFilter for RateFilter {
    fn filter(
        &self,
        head: &mut ParsedRequest,
        connection: &ConnectionInfo,
        _: Option<&ParsedBody>,
    ) -> FilterResult {
        let Evaluation::Ready(PolicyResult::Admitted(admission)) =
            self.gate.check(&HttpRequestHead::new(head, connection.peer.ip()))
        else {
            panic!("bandwidth rejects nothing")
        };
        let context: Box<dyn FilterContext> = Box::new(RateContext(admission));
        FilterResult::Ready(FilterDecision {
            action: Action::Forward(self.app),
            context: Some(context),
            note: None,
        })
    }
}

struct RateContext(PolicyAdmission);

impl FilterContext for RateContext {
    fn rates(&self) -> Rates<'_> {
        Rates { upload: self.0.request_rates(), download: self.0.response_rates() }
    }
}

/// A gateway whose policy has a manual clock.
struct VirtualGateway {
    gateway: InProcessGateway,
    gate: PolicyGate,
    clock: Clock,
    manual_clock: ManualClock,
}

impl VirtualGateway {
    async fn start(rules: &str, server: &TestBackend, protocol: Protocol) -> Self {
        let policy: Policy = format!("rules: [{rules}]").parse().unwrap();
        let (clock, manual_clock) = Clock::manual();
        manual_clock.set(Micros::from_secs(1_000_000));
        let gate = Compiler::new(Rules::new()).clock(clock.clone()).compile(&policy, None).unwrap();
        let mut config = test_config(&[server]);
        config.upstreams.get_mut("app").unwrap().protocol = protocol;
        let app = config.upstream_id("app").unwrap();
        let filter = RateFilter { gate: gate.clone(), app };
        let gateway = InProcessGateway::start_with_filter(config, filter).await;
        Self { gateway, gate, clock, manual_clock }
    }

    /// Sends a request over its own connection.
    async fn send<B>(&self, version: Version, request: Request<B>) -> Response<Incoming>
    where
        B: Body<Data = Bytes, Error: std::error::Error + Send + Sync> + Send + Unpin + 'static,
    {
        let io = TokioIo::new(TcpStream::connect(self.gateway.address).await.unwrap());
        let response = if version == Version::HTTP_2 {
            let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
            tokio::spawn(connection);
            timeout(TEST_TIMEOUT, sender.send_request(request)).await
        } else {
            let (mut sender, connection) = http1::handshake(io).await.unwrap();
            tokio::spawn(connection);
            timeout(TEST_TIMEOUT, sender.send_request(request)).await
        };
        response.unwrap().unwrap()
    }

    async fn get(&self, version: Version) -> Incoming {
        self.send(version, get_request()).await.into_body()
    }

    /// Runs new transfers at their rate; see [`Self::run_from`].
    async fn run(&self, meter: &ByteMeter, expected: ExpectedRate, time: Duration) {
        self.run_from(0, meter, expected, time).await;
    }

    /// Advances the clock in steps of a millisecond. Before each step, waits for the bytes that the rate allows, and checks
    /// that there are not more: in all, above `first`, the free bytes, the burst, and the rate times the time.
    async fn run_from(&self, first: u64, meter: &ByteMeter, expected: ExpectedRate, time: Duration) {
        let ExpectedRate { rate, burst, free } = expected;
        let start = self.clock.now();
        let elapsed = || self.clock.now().saturating_sub(start).get();
        while elapsed() < u64::try_from(time.as_micros()).unwrap() {
            // Less would lose a part of the rate in the next step.
            let least = free + rate * (elapsed() + 1_000) / 1_000_000;
            meter.wait_for(first + least).await;
            let most = free + burst + rate * elapsed() / 1_000_000;
            let moved = meter.total() - first;
            assert!(moved <= most, "{moved} of {most} bytes after {} us", elapsed());
            self.manual_clock.advance(Duration::from_millis(1));
        }
    }
}

/// The expected bytes of a run: at once, and per second.
#[derive(Clone, Copy)]
struct ExpectedRate {
    rate: u64,
    burst: u64,
    free: u64,
}

const RATE_100KB: ExpectedRate = ExpectedRate { rate: 100_000, burst: 900, free: 0 };

fn get_request() -> Request<Empty<Bytes>> {
    Request::get("http://a/").header(header::HOST, "a").body(Empty::new()).unwrap()
}

/// Counts received bytes.
#[derive(Clone, Default)]
struct ByteMeter(Arc<MeterState>);

#[derive(Default)]
struct MeterState {
    bytes: AtomicU64,
    changed: Notify,
}

impl ByteMeter {
    fn total(&self) -> u64 {
        self.0.bytes.load(Ordering::SeqCst)
    }

    fn add(&self, bytes: usize) {
        self.0.bytes.fetch_add(bytes as u64, Ordering::SeqCst);
        self.0.changed.notify_waiters();
    }

    async fn wait_for(&self, bytes: u64) {
        loop {
            let changed = self.0.changed.notified();
            if self.total() >= bytes {
                return;
            }
            let total = self.total();
            assert!(timeout(TEST_TIMEOUT, changed).await.is_ok(), "{total} of {bytes} bytes arrive");
        }
    }

    /// Reads a body in a task, and returns its own count.
    fn read(&self, mut body: Incoming) -> (Self, JoinHandle<Option<HeaderMap>>) {
        let (all, own) = (self.clone(), Self::default());
        let count = own.clone();
        let task = tokio::spawn(async move {
            let mut trailers = None;
            while let Some(Ok(frame)) = body.frame().await {
                match frame.into_data() {
                    Ok(data) => {
                        own.add(data.len());
                        all.add(data.len());
                    }
                    Err(other) => trailers = other.into_trailers().ok(),
                }
            }
            trailers
        });
        (count, task)
    }
}

/// A body of zeros that is never exhausted.
fn endless_body() -> TestBody {
    static PIECE: [u8; 1 << 16] = [0; 1 << 16];
    StreamBody::new(stream::iter(std::iter::repeat_with(|| Ok(Frame::data(Bytes::from_static(&PIECE))))))
        .boxed()
}

async fn endless_server() -> TestBackend {
    TestBackend::start(|_| async { Response::new(endless_body()) }).await
}

const VERSIONS: [Version; 2] = [Version::HTTP_11, Version::HTTP_2];

#[tokio::test]
async fn response_keeps_its_rate() {
    for (rate, expected) in [
        ("1kB/s", ExpectedRate { rate: 1_000, burst: 36, free: 0 }),
        ("10kB/s", ExpectedRate { rate: 10_000, burst: 300, free: 0 }),
        ("100kB/s", RATE_100KB),
        ("100kB/s burst 50kB", ExpectedRate { rate: 100_000, burst: 50_000, free: 0 }),
        ("20MB/s", ExpectedRate { rate: 20_000_000, burst: 180_000, free: 0 }),
    ] {
        for version in VERSIONS {
            let server = endless_server().await;
            let bandwidth = format!("{{ down: {rate}, up: 1GB/s }}");
            let rules = format!("{{ name: slow, key: request, bandwidth: {bandwidth} }}");
            let gateway = VirtualGateway::start(&rules, &server, Protocol::Http1).await;
            let meter = ByteMeter::default();
            meter.read(gateway.get(version).await);
            gateway.run(&meter, expected, Duration::from_millis(1_100)).await;
        }
    }
}

#[tokio::test]
async fn request_keeps_its_rate() {
    for version in VERSIONS {
        // Counts the bytes of the request that arrive at the server.
        let received = ByteMeter::default();
        let meter = received.clone();
        let server = TestBackend::start(move |request: Request<Incoming>| {
            let meter = meter.clone();
            async move {
                let (_, task) = meter.read(request.into_body());
                let _ = task.await;
                Response::new(text_body("done"))
            }
        })
        .await;
        let rules = "{ name: slow, key: request, bandwidth: { down: 1GB/s, up: 100kB/s } }";
        let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
        let sent = ByteMeter::default();
        let upload = sent.clone();
        let body = StreamBody::new(stream::iter(std::iter::repeat_with(move || {
            upload.add(1 << 14);
            Ok::<_, std::io::Error>(Frame::data(Bytes::from(vec![0; 1 << 14])))
        })));
        let request = Request::post("http://a/").header(header::HOST, "a").body(body).unwrap();
        let sending = gateway.send(version, request);
        tokio::select! {
            _ = sending => panic!("the request is endless"),
            () = gateway.run(&received, RATE_100KB, Duration::from_millis(1_100)) => {}
        }
        // The rest is in the buffers of two sockets, and in those of the gateway.
        let ahead = sent.total() - received.total();
        assert!(ahead < 32 << 20, "{ahead} bytes are read ahead");
    }
}

#[tokio::test]
async fn connections_of_one_key_share_the_rate() {
    for version in VERSIONS {
        let server = endless_server().await;
        let rules = "{ name: slow, key: ip, bandwidth: 1MB/s }";
        let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
        let meter = ByteMeter::default();
        let mut connections = Vec::new();
        for _ in 0..10 {
            connections.push(meter.read(gateway.get(version).await).0);
        }
        let expected = ExpectedRate { rate: 1_000_000, burst: 9_000, free: 0 };
        gateway.run(&meter, expected, Duration::from_secs(1)).await;
        for connection in &connections {
            let share = connection.total();
            assert!((80_000..120_000).contains(&share), "{share} of 1000000 bytes");
        }
    }
}

#[tokio::test]
async fn connections_of_per_request_key_have_their_own_rate() {
    let server = endless_server().await;
    let rules = "{ name: slow, key: request, bandwidth: 100kB/s }";
    let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
    let meter = ByteMeter::default();
    for _ in 0..5 {
        meter.read(gateway.get(Version::HTTP_11).await);
    }
    let expected = ExpectedRate { rate: 500_000, burst: 4_500, free: 0 };
    gateway.run(&meter, expected, Duration::from_secs(1)).await;
}

/// Each of two rules limits a response; the slower one decides.
#[tokio::test]
async fn all_rules_apply_to_a_response() {
    for order in [["100kB/s", "10MB/s"], ["10MB/s", "100kB/s"]] {
        let server = endless_server().await;
        let [first, second] = order;
        let rules = format!("{{ name: a, bandwidth: {first} }}, {{ name: b, key: ip, bandwidth: {second} }}");
        let gateway = VirtualGateway::start(&rules, &server, Protocol::Http1).await;
        let meter = ByteMeter::default();
        meter.read(gateway.get(Version::HTTP_11).await);
        gateway.run(&meter, RATE_100KB, Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn first_bytes_of_each_response_are_exempt() {
    for version in VERSIONS {
        let server = endless_server().await;
        let rules = "{ name: slow, key: ip, bandwidth: 100kB/s after 200kB }";
        let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
        let meter = ByteMeter::default();
        for _ in 0..2 {
            meter.read(gateway.get(version).await);
        }
        let expected = ExpectedRate { free: 2 * 200_000, ..RATE_100KB };
        gateway.run(&meter, expected, Duration::from_millis(500)).await;
    }
}

#[tokio::test]
async fn schedule_changes_transfers_in_progress() {
    let server = endless_server().await;
    // The clock starts on 1970-01-12, a Monday, at 13:46:40.
    let rules = "{ name: slow, key: ip, bandwidth: 100kB/s, schedule: '14:00-15:00 x3; 15:00-16:00 x0.5' }";
    let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
    let meter = ByteMeter::default();
    meter.read(gateway.get(Version::HTTP_11).await);
    gateway.run(&meter, RATE_100KB, Duration::from_millis(200)).await;
    for rate in [300_000, 50_000, 100_000] {
        let before = meter.total();
        gateway.manual_clock.advance(Duration::from_secs(3_600));
        gateway.gate.update_schedules();
        // The burst of the new rate, that of the previous one, and what has not arrived of that before.
        let burst = (rate * 9 / 1_000).max(512) + 2 * 2_700;
        let expected = ExpectedRate { rate, burst, free: 0 };
        gateway.run_from(before, &meter, expected, Duration::from_millis(200)).await;
    }
}

/// Content lengths, empty bodies, responses to HEAD, and trailers are unchanged.
#[tokio::test]
async fn limited_responses_are_unchanged() {
    let text: String = (0..2_000).map(|number| format!("{number};")).collect();
    let content = text.clone();
    let respond = move |request: Request<Incoming>| {
        let content = content.clone();
        async move {
            let (method, path) = (request.method().clone(), request.uri().path().to_owned());
            let _ = request.into_body().collect().await;
            match path.as_str() {
                // Over HTTP/2, hyper would send the body of the response.
                _ if method == Method::HEAD => {
                    let response = Response::builder().header(header::CONTENT_LENGTH, content.len());
                    response.body(text_body("")).unwrap()
                }
                "/empty" => Response::new(text_body("")),
                "/trailers" => {
                    let (mut sender, body) = Channel::<Bytes, Infallible>::new(2);
                    tokio::spawn(async move {
                        let _ = sender.send_data(content.into()).await;
                        let sum = (HeaderName::from_static("x-sum"), HeaderValue::from_static("7"));
                        let _ = sender.send_trailers(HeaderMap::from_iter([sum])).await;
                    });
                    let mut response = Response::new(body.map_err(|never| match never {}).boxed());
                    response.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
                    response
                }
                _ => Response::new(text_body(content)),
            }
        }
    };
    let http1_server = TestBackend::start(respond.clone()).await;
    let http2_server = TestBackend::start_raw(move |stream| {
        let respond = respond.clone();
        async move {
            let service = service_fn(move |request| {
                let response = respond(request);
                async move { Ok::<_, Infallible>(response.await) }
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = builder.serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await;
    let servers = [(&http1_server, Protocol::Http1), (&http2_server, Protocol::Http2)];
    for (server, protocol) in servers {
        for version in VERSIONS {
            let rules = "{ name: slow, key: ip, bandwidth: { down: 100kB/s, up: 100kB/s } }";
            let gateway = VirtualGateway::start(rules, server, protocol).await;
            let send = |method: &str, path: &str| {
                let request = Request::builder().method(method).uri(format!("http://a{path}"));
                let request = request.header(header::HOST, "a").header(header::TE, "trailers");
                gateway.send(version, request.body(text_body("a request")).unwrap())
            };
            let length = Some(text.len() as u64);
            let head = send("HEAD", "/").await;
            let known =
                head.headers().get(header::CONTENT_LENGTH).map(|known| known.to_str().unwrap().to_owned());
            assert_eq!(known, length.map(|length| length.to_string()));
            assert_eq!(head.into_body().collect().await.unwrap().to_bytes(), "");
            assert_eq!(send("GET", "/empty").await.into_body().collect().await.unwrap().to_bytes(), "");

            for path in ["/", "/trailers"] {
                let response = send("GET", path).await;
                let expected = length.filter(|_| path == "/");
                assert_eq!(response.body().size_hint().exact(), expected, "{version:?} {path}");
                let mut reading = tokio::spawn(response.into_body().collect());
                let received = loop {
                    // The rest of the time does not matter: more of it allows more bytes.
                    tokio::select! {
                        received = &mut reading => break received.unwrap().unwrap(),
                        () = tokio::task::yield_now() => gateway.manual_clock.advance(Duration::from_millis(1)),
                    }
                };
                let sum = received.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
                assert_eq!(sum.is_some(), path == "/trailers", "{version:?} {path}");
                assert!(received.to_bytes() == text, "{version:?} {path}");
            }
        }
    }
}

/// A stream whose client grants no window takes nothing from the other streams of its key.
#[tokio::test]
async fn stalled_http2_stream_leaves_the_rate_to_others() {
    let server = endless_server().await;
    let rules = "{ name: slow, key: ip, bandwidth: 1MB/s }";
    let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
    let stream = TcpStream::connect(gateway.gateway.address).await.unwrap();
    let (sender, connection) = h2::client::Builder::new()
        .initial_connection_window_size(1 << 30)
        .handshake::<_, Bytes>(stream)
        .await
        .unwrap();
    tokio::spawn(connection);
    let meter = ByteMeter::default();
    let mut counts = Vec::new();
    for keeps_window in [true, false] {
        let request = Request::get("http://a/").body(()).unwrap();
        let (response, _) = sender.clone().ready().await.unwrap().send_request(request, true).unwrap();
        let mut body = timeout(TEST_TIMEOUT, response).await.unwrap().unwrap().into_body();
        let (all, own) = (meter.clone(), ByteMeter::default());
        counts.push(own.clone());
        tokio::spawn(async move {
            while let Some(Ok(data)) = body.data().await {
                all.add(data.len());
                own.add(data.len());
                // The first one never gets a new window.
                if !keeps_window {
                    body.flow_control().release_capacity(data.len()).unwrap();
                }
            }
        });
    }
    let expected = ExpectedRate { rate: 1_000_000, burst: 9_000, free: 0 };
    gateway.run(&meter, expected, Duration::from_secs(1)).await;
    assert_eq!(counts[0].total(), 65_535);
    assert!(counts[1].total() >= 930_000, "{} bytes", counts[1].total());
}

/// After an upgrade, bytes pass without a limit.
#[tokio::test]
async fn tunnel_passes_with_bandwidth() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = crate::harness::RawClient::new(stream);
        wire.read_head().await;
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
            .await;
        let received = wire.read_exact(100_000).await;
        wire.send(received).await;
    })
    .await;
    let rules = "{ name: slow, key: ip, bandwidth: { down: 1kB/s, up: 1kB/s } }";
    let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
    let mut client = gateway.gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    client.read_head().await;
    client.send(vec![7; 100_000]).await;
    assert_eq!(client.read_exact(100_000).await, vec![7; 100_000]);
}

/// A client may send the rest of its request after the start of the response.
#[tokio::test]
async fn limited_response_does_not_stop_the_request() {
    let (received, complete) = tokio::sync::oneshot::channel();
    let received = Arc::new(std::sync::Mutex::new(Some(received)));
    let server = TestBackend::start_raw(move |stream| {
        let received = received.clone();
        async move {
            let mut wire = RawClient::new(stream);
            wire.read_head().await;
            wire.send(format!("HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n{}", "r".repeat(60_000)))
                .await;
            wire.read_exact(50_000).await;
            let _ = received.lock().unwrap().take().unwrap().send(());
            wire.read_to_end().await;
        }
    })
    .await;
    // The clock does not advance, so the response stops after the first bytes.
    let rules = "{ name: down, bandwidth: { down: 1kB/s } }";
    let gateway = VirtualGateway::start(rules, &server, Protocol::Http1).await;
    let mut client = gateway.gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 50000\r\n\r\n").await;
    client.read_head().await;
    client.read_exact(1).await;
    for _ in 0..50 {
        client.send([b'u'; 1_000]).await;
    }
    timeout(TEST_TIMEOUT, complete).await.expect("the server receives the request").unwrap();
}
