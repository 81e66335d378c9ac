//! Rules see exactly what is forwarded: paths, headers, bodies.

use crate::{
    admin_api::AdminGateway,
    harness::{InProcessGateway, RawClient, TEST_TIMEOUT, TestBackend, test_config, text_body},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Channel, Empty};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_policy::model::{EscapedSlashes, Underscores};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// Sends an HTTP/2 request with these headers; returns the status and body of the response.
pub(crate) async fn request_http2(
    address: SocketAddr,
    path: &str,
    headers: &[(&'static str, &'static str)],
) -> (u16, String) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let mut request = Request::get(format!("http://app.example{path}")).body(Empty::<Bytes>::new()).unwrap();
    for (name, value) in headers {
        request.headers_mut().append(*name, HeaderValue::from_static(value));
    }
    let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    let status = response.status().as_u16();
    let body = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

#[tokio::test]
async fn path_encoding_does_not_bypass_deny_rule() {
    let server = TestBackend::start_echo().await;
    let gateway =
        AdminGateway::start(&server, "rules:\n  - { name: api, match: { path: /api/** }, deny: all }\n");
    for (path, status) in [
        ("/api/x", 403),
        ("/x/../api/x", 403),
        ("//api//x", 403),
        ("/%61pi/x", 403),
        ("/api/..;/x", 400),
        ("/api/%2e%2e;/x", 400),
        ("/api/%2e%2e/x", 400),
        ("/api/x%2f..%2f..%2fz", 400),
        ("/x\\..\\api\\y", 400),
        ("/../api/x", 400),
        ("/api%00/x", 400),
        ("/%zz", 400),
    ] {
        let response = gateway.get(path).await;
        assert_eq!(response.status(), status, "{path}: {}", response.body);
        let (over_http2, body) = request_http2(gateway.address, path, &[]).await;
        assert_eq!(over_http2, status, "{path}: {body}");
    }
    // An admitted request is forwarded with the normalized path that the rules saw.
    for (path, forwarded) in [
        ("/api/../x?a=/../b", "/x?a=/../b"),
        ("/a/./b//c/", "/a/b/c/"),
        ("/%61%2db%3b;v=1?%61", "/a-b%3B;v=1?%61"),
        ("/x%20y", "/x%20y"),
    ] {
        let response = gateway.get(path).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.body.lines().next(), Some(&*format!("GET {forwarded}")), "{path}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn escaped_slashes_follow_policy() {
    let server = TestBackend::start_echo().await;
    for (mode, status, forwarded) in
        [("reject", 400, None), ("keep", 200, Some("/api%2Fx")), ("unescape", 403, None)]
    {
        let gateway = AdminGateway::start(
            &server,
            &format!(
                "connections: {{ escaped-slashes: {mode} }}\nrules:\n  - {{ name: api, match: {{ path: /api/** }}, deny: all }}\n"
            ),
        );
        let response = gateway.get("/api%2fx").await;
        assert_eq!(response.status(), status, "{mode}");
        if let Some(forwarded) = forwarded {
            assert_eq!(response.body.lines().next(), Some(&*format!("GET {forwarded}")));
        }
        assert_eq!(gateway.get("/x%2f..%2fapi/y").await.status(), 400, "{mode}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn http2_header_value_with_outer_whitespace_is_rejected() {
    let server = TestBackend::start_echo().await;
    let rules = "rules:\n  - { name: each, key: header x-user, quota: 1/h }\n  - { name: no, match: { header: { x-plan: banned } }, deny: all }\n";
    let gateway = AdminGateway::start(&server, rules);
    assert_eq!(request_http2(gateway.address, "/", &[("x-user", "alice")]).await.0, 200);
    assert_eq!(request_http2(gateway.address, "/", &[("x-user", "alice")]).await.0, 429);
    for value in ["alice ", " alice", "alice\t"] {
        assert_eq!(request_http2(gateway.address, "/", &[("x-user", value)]).await.0, 400, "{value:?}");
    }
    let plan = [("x-user", "bob"), ("x-plan", "banned ")];
    assert_eq!(request_http2(gateway.address, "/", &plan).await.0, 400);
    gateway.stop().await;
}

#[tokio::test]
async fn headers_with_underscores_are_dropped_by_default() {
    let server = TestBackend::start_echo().await;
    let request =
        "GET / HTTP/1.1\r\nhost: a\r\nx_user: mallory\r\nx_forwarded_for: 10.0.0.1\r\nx-user: a_b\r\n\r\n";
    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway.connect().await.request(request).await;
    assert_eq!(
        (response.echoed_headers("x_user"), response.echoed_headers("x_forwarded_for")),
        (Vec::new(), Vec::new())
    );
    assert_eq!(response.echoed_headers("x-user"), ["a_b"]);

    let mut allowing = test_config(&[&server]);
    allowing.connections.underscores = Underscores::Allow;
    let gateway = InProcessGateway::start_with(allowing).await;
    let response = gateway.connect().await.request(request).await;
    assert_eq!(response.echoed_headers("x_user"), ["mallory"]);
}

/// Rules do not see headers that are not forwarded: those that `Connection` names, and forwarding headers of the client.
#[tokio::test]
async fn unforwarded_header_does_not_match_rules() {
    let server = TestBackend::start_echo().await;
    for (name, more) in [
        ("x-user", "x-user: gold\r\nconnection: x-user\r\n"),
        ("x-user", "connection: close, X-User\r\nx-user: gold\r\n"),
        ("x-forwarded-for", "x-forwarded-for: 10.0.0.1\r\n"),
        ("x-real-ip", "x-real-ip: 10.0.0.1\r\n"),
        ("x-request-id", "x-request-id: mine\r\n"),
        ("forwarded", "forwarded: for=10.0.0.1\r\n"),
    ] {
        let rules =
            format!("rules:\n  - {{ name: each, key: header {name}, missing: reject, quota: 9/h }}\n");
        let gateway = AdminGateway::start(&server, &rules);
        assert_eq!(gateway.get_with_header("/", more).await.status(), 400, "{more}");
        gateway.stop().await;
    }
    let rules = "rules:\n  - { name: each, key: header x-user, missing: reject, quota: 9/h }\n";
    let gateway = AdminGateway::start(&server, rules);
    let response = gateway.get_with_header("/", "x-user: gold\r\nconnection: x-plan\r\nx-plan: a\r\n").await;
    assert_eq!(
        (response.status(), response.echoed_headers("x-user"), response.echoed_headers("x-plan")),
        (200, vec!["gold"], vec![])
    );
    gateway.stop().await;
}

#[tokio::test]
async fn underscores_follow_policy() {
    let server = TestBackend::start_echo().await;
    let rules = "rules:\n  - { name: each, key: header x_user, missing: reject, quota: 1/h }\n";
    let gateway = AdminGateway::start(&server, rules);
    assert_eq!(gateway.get_with_header("/", "x_user: alice\r\n").await.status(), 400);
    gateway.stop().await;
    let gateway =
        AdminGateway::start(&server, &format!("connections: {{ underscores-in-headers: allow }}\n{rules}"));
    assert_eq!(gateway.get_with_header("/", "x_user: alice\r\n").await.status(), 200);
    assert_eq!(gateway.get_with_header("/", "x_user: alice\r\n").await.status(), 429);
    gateway.stop().await;
}

#[tokio::test]
async fn duplicate_key_headers_follow_policy() {
    let server = TestBackend::start_echo().await;
    let rule = |key: &str, more: &str| {
        format!("rules:\n  - {{ name: each, key: {key}, match: {{ path: /limited }}, quota: 1/h{more} }}\n")
    };
    let cases = [
        ("header x-user", "/limited", "x-user: alice\r\nx-user: bob\r\n"),
        ("cookie user", "/limited", "cookie: user=alice; user=bob\r\n"),
        ("query user", "/limited?user=alice&%75ser=bob", ""),
        ("[ip, header x-user]", "/limited", "x-user: alice\r\nx-user: bob\r\n"),
    ];
    for (key, path, headers) in cases {
        let gateway = AdminGateway::start(&server, &rule(key, ""));
        let response = gateway.get_with_header(path, headers).await;
        assert_eq!(response.status(), 400, "{key}");
        assert!(response.body.contains("repeats a header, cookie or query parameter"), "{}", response.body);
        // Duplicates of a header that is no key are allowed.
        assert_eq!(
            gateway.get_with_header(&path.replace("/limited", "/free"), headers).await.status(),
            200,
            "{key}"
        );
        gateway.stop().await;
    }
    let only = |name: &str| format!("x-user: {name}\r\n");
    for (which, counted, other) in [("first", "alice", "bob"), ("last", "bob", "alice")] {
        let gateway = AdminGateway::start(&server, &rule("header x-user", &format!(", duplicates: {which}")));
        assert_eq!(
            gateway.get_with_header("/limited", "x-user: alice\r\nx-user: bob\r\n").await.status(),
            200
        );
        assert_eq!(gateway.get_with_header("/limited", &only(counted)).await.status(), 429, "{which}");
        assert_eq!(gateway.get_with_header("/limited", &only(other)).await.status(), 200, "{which}");
        gateway.stop().await;
    }
}

/// A rule in shadow mode rejects nothing.
#[tokio::test]
async fn duplicate_key_headers_pass_shadow_rule() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(
        &server,
        "rules:\n  - { name: each, key: header x-user, quota: 1/h, mode: shadow }\n",
    );
    assert_eq!(gateway.get_with_header("/", "x-user: a\r\nx-user: b\r\n").await.status(), 200);
    gateway.stop().await;
}

/// Starts a server that responds to every request with these bytes.
async fn start_fixed_response(response: &'static str) -> TestBackend {
    TestBackend::start_raw(move |mut stream| async move {
        let mut piece = [0; 4_096];
        while let Ok(1..) = stream.read(&mut piece).await {
            if stream.write_all(response.as_bytes()).await.is_err() {
                return;
            }
        }
    })
    .await
}

#[tokio::test]
async fn response_content_length_beside_transfer_encoding_is_dropped() {
    for (response, body) in [
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "hello",
        ),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
            "hello",
        ),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5, 5\r\n\r\nhello", "hello"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 5\r\ncontent-length: 5\r\n\r\nhello", "hello"),
    ] {
        let server = start_fixed_response(response).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let got = gateway.connect().await.get("/").await;
        assert_eq!(got.body, body, "{response:?} became {:?}", got.head);
        assert!(got.head.matches("content-length").count() <= 1, "{:?}", got.head);
        assert_ne!(got.header("content-length"), Some("5, 5"));
    }
}

#[tokio::test]
async fn body_of_a_get_is_forwarded() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    for method in ["GET", "POST", "DELETE"] {
        let response = gateway
            .connect()
            .await
            .request(&format!(
                "{method} / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
            ))
            .await;
        assert!(response.body.ends_with("\n\nhello"), "{method}: {}", response.body);
    }
    // A response to HEAD has no body, so the server reports the length of what it received.
    let counting = TestBackend::start(|request: Request<hyper::body::Incoming>| async move {
        let received = request.into_body().collect().await.unwrap().to_bytes();
        http::Response::builder().header("x-received", received.len()).body(text_body("")).unwrap()
    })
    .await;
    let counted = InProcessGateway::start(&[&counting]).await;
    for body in
        ["transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "content-length: 5\r\n\r\nhello"]
    {
        let mut client = counted.connect().await;
        client.send(format!("HEAD / HTTP/1.1\r\nhost: a\r\n{body}")).await;
        let head = client.read_head().await;
        assert!(head.contains("x-received: 5\r\n"), "{head}");
    }
    // A body of unknown length, over HTTP/2.
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let (mut body, sent) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(async move { body.send_data(Bytes::from_static(b"hello")).await });
    let request = Request::get("http://a/").body(sent).unwrap();
    let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.ends_with(b"\n\nhello"), "{body:?}");
}

#[tokio::test]
async fn request_trailers_drop_head_only_fields() {
    let server = TestBackend::start(|request: Request<hyper::body::Incoming>| async move {
        let received = request.into_body().collect().await.unwrap();
        let names: Vec<_> =
            received.trailers().into_iter().flat_map(HeaderMap::keys).map(HeaderName::as_str).collect();
        http::Response::new(text_body(names.join(" ")))
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let trailers = "x-sum: 1\r\nx-forwarded-for: 10.0.0.1\r\ncookie: a=b\r\nauthorization: x\r\nx_sum: 2\r\n";
    let names = "x-sum, x-forwarded-for, cookie, authorization, x_sum";
    let response = gateway
        .connect()
        .await
        .request(&format!(
            "POST / HTTP/1.1\r\nhost: a\r\nte: trailers\r\ntrailer: {names}\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n{trailers}\r\n"
        ))
        .await;
    assert!(
        !["x-forwarded-for", "cookie", "authorization", "x_sum"]
            .iter()
            .any(|name| response.body.contains(name)),
        "{}",
        response.body
    );
}

#[tokio::test]
async fn request_line_that_nginx_rejects_is_rejected() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let long = format!("{} / HTTP/1.1\r\nhost: a\r\n\r\n", "M".repeat(33));
    for (request, status) in [
        ("GET x HTTP/1.1\r\nhost: a\r\n\r\n", StatusCode::BAD_REQUEST),
        ("GET * HTTP/1.1\r\nhost: a\r\n\r\n", StatusCode::BAD_REQUEST),
        ("OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n", StatusCode::OK),
        ("TRACE / HTTP/1.1\r\nhost: a\r\n\r\n", StatusCode::METHOD_NOT_ALLOWED),
        (&long, StatusCode::BAD_REQUEST),
        ("GET / HTTP/1.1\r\nhost:\r\n\r\n", StatusCode::BAD_REQUEST),
        ("GET http://user:pass@a/ HTTP/1.1\r\nhost: a\r\n\r\n", StatusCode::BAD_REQUEST),
    ] {
        let mut client: RawClient = gateway.connect().await;
        assert_eq!(client.request(request).await.status(), status.as_u16(), "{request:?}");
    }
    let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: h2c-14\r\n\r\n";
    assert_eq!(gateway.connect().await.request(upgrade).await.echoed_headers("upgrade"), [""; 0]);
}

#[tokio::test]
async fn escaped_slash_setting_is_applied_to_config() {
    let server = TestBackend::start_echo().await;
    let mut keeping = test_config(&[&server]);
    keeping.connections.escaped_slashes = EscapedSlashes::Keep;
    let gateway = InProcessGateway::start_with(keeping).await;
    assert!(gateway.connect().await.get("/a%2fb").await.body.starts_with("GET /a%2Fb\n"));
}

#[tokio::test]
async fn credentials_are_never_exposed() {
    let server = TestBackend::start_echo().await;
    let policy = "
observe: { denials: 100, history: 100, keys: plain }
user: header authorization
log: { format: json, file: access.log }
rules:
  - { name: key, key: header x-api-key, missing: skip, quota: 1/h }
  - { name: bearer, key: user, missing: skip, quota: 1/h }
  - { name: session, key: [ip, cookie sid], missing: skip, quota: 1/h }
  - { name: token, key: query access_token, missing: skip, quota: 1/h }
  - { name: cel, key: { cel: \"request.headers['x-auth-token']\" }, missing: skip, quota: 1/h }
  - { name: plain, key: header x-user, missing: skip, quota: 1/h }
  - { name: matched, match: { header: { x-api-key: swordfish }, not: { cookie: { gate: swordfish } } }, quota: 1000/s }
  - { name: when, match: { when: \"request.headers['authorization'] == 'swordfish'\" }, quota: 1000/s }
";
    let gateway = AdminGateway::start(&server, policy);
    for (path, header) in [
        ("/", "x-api-key: swordfish\r\n"),
        ("/", "authorization: Bearer swordfish\r\n"),
        ("/", "cookie: sid=swordfish\r\n"),
        ("/?access_token=swordfish", ""),
        ("/", "x-auth-token: swordfish\r\n"),
        ("/", "x-user: alice\r\n"),
    ] {
        for status in [200, 429] {
            assert_eq!(gateway.get_with_header(path, header).await.status(), status, "{path} {header}");
        }
    }
    let ban = r#"{ "rule": "key", "key": "swordfish", "seconds": 60 }"#;
    assert_eq!(gateway.admin_request("POST", "/api/v1/bans", ban).await.status(), 201);
    for path in ["top", "top?by=requests", "denials", "history", "policy", "bans", "status"] {
        let path = format!("/api/v1/{path}");
        let shown = gateway.admin_request("GET", &path, "").await;
        assert_eq!(shown.status(), 200, "{path}");
        assert!(!shown.body.contains("swordfish"), "{path}: {}", shown.body);
        // The token is required.
        assert_eq!(gateway.admin_request_with_header("GET", &path, "", "").await.status(), 401, "{path}");
    }
    let top = gateway.admin_request("GET", "/api/v1/top", "").await.body;
    assert!(top.contains(r#""key":"alice""#), "a key that is not a credential is shown: {top}");
    assert!(!gateway.admin_request("GET", "/metrics", "").await.body.contains("swordfish"));
    for path in ["/health", "/metrics"] {
        assert_eq!(gateway.admin_request_with_header("GET", path, "", "").await.status(), 200, "{path}");
    }
    // The log is written by another thread.
    let read = || std::fs::read_to_string(gateway.folder.path().join("access.log")).unwrap_or_default();
    let logged = async {
        while read().lines().count() < 12 {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, logged).await.unwrap();
    let log = read();
    assert!(log.contains("access_token=") && !log.contains("swordfish"), "{log}");
    gateway.stop().await;
}

/// Clients that send requests and do not read.
#[derive(Clone, Copy, Debug)]
enum UnreadLoad {
    /// The number of HTTP/1.1 connections.
    Http1(usize),
    /// The number of HTTP/2 connections with 100 streams each, and the window size in bytes.
    Http2(usize, u32),
}

/// The size of each unread response.
const RESPONSE_SIZE: usize = 2 << 20;

/// The memory of this process, in bytes.
fn resident_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// An HTTP/2 frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

impl UnreadLoad {
    async fn send_requests(self, address: SocketAddr) -> Vec<TcpStream> {
        let (connections, hello) = match self {
            Self::Http1(connections) => (connections, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n".to_vec()),
            Self::Http2(connections, window) => {
                let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
                hello.extend(frame(4, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat()));
                hello.extend(frame(8, 0, 0, &(0x7fff_ffff_u32 - 65_535).to_be_bytes()));
                for stream in 0..100 {
                    // GET, http, /, and the authority `a`.
                    hello.extend(frame(1, 5, 2 * stream + 1, &[0x82, 0x86, 0x84, 0x41, 1, b'a']));
                }
                (connections, hello)
            }
        };
        let mut clients = Vec::new();
        for _ in 0..connections {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(&hello).await.unwrap();
            clients.push(stream);
        }
        clients
    }
}

/// Measures the memory of clients that read nothing, and its reuse. Runs in its own process, because other tests would use
/// memory at the same time.
#[tokio::test(flavor = "multi_thread")]
async fn memory_of_unread_responses_is_bounded() {
    const MEASURE: &str = "TIDEGATE_MEASURE_UNREAD";
    if std::env::var_os(MEASURE).is_none() {
        let name = "normalization::memory_of_unread_responses_is_bounded";
        let mut program = std::process::Command::new(std::env::current_exe().unwrap());
        let program = program.args(["--exact", name, "--nocapture"]).env(MEASURE, "1");
        let output = tokio::task::block_in_place(|| program.output()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    let body: &'static [u8] = vec![b'a'; RESPONSE_SIZE].leak();
    let (written, open) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counts = (written.clone(), open.clone());
    let server = TestBackend::start_raw(move |mut stream| {
        let (written, open) = counts.clone();
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            let mut piece = [0; 1_024];
            let _ = stream.read(&mut piece).await;
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {RESPONSE_SIZE}\r\n\r\n");
            let _ = stream.write_all(head.as_bytes()).await;
            let mut rest = body;
            while let Ok(length @ 1..) = stream.write(rest).await {
                rest = &rest[length..];
                written.fetch_add(length, Ordering::SeqCst);
            }
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    gateway.connect().await.get("/").await;
    let before = resident_memory();

    const LARGEST: u32 = 0x7fff_ffff;
    let kinds = [UnreadLoad::Http1(100), UnreadLoad::Http2(4, LARGEST), UnreadLoad::Http2(4, 1)];
    for _ in 0..3 {
        for unread in kinds {
            let clients = unread.send_requests(gateway.address).await;
            // Until the servers have been blocked for a while.
            let (mut still, mut last) = (0_u32, usize::MAX);
            while still < 20 {
                tokio::time::sleep(Duration::from_millis(50)).await;
                let now = written.load(Ordering::SeqCst);
                still = if now == last { still + 1 } else { 0 };
                last = now;
            }
            let taken = resident_memory().saturating_sub(before);
            // Each connection has a send buffer, and read buffers of blocked responses. Memory of earlier clients is reused.
            assert!(taken < 40 << 20, "{unread:?}: {} MB", taken >> 20);
            drop(clients);
            while open.load(Ordering::SeqCst) > 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
