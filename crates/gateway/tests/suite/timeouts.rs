//! Timeouts of clients and servers, and the end of connections.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    harness::{InProcessGateway, RawClient, TEST_TIMEOUT, TestBackend, test_config, text_body},
    tls::{connect, start_tls_with, write_certificates},
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::{future::pending, time::Duration};
use tidegate_gateway::Action;
use tidegate_policy::head::ParsedRequest;
use tidegate_rule::Rules;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    time::timeout,
};

const SHORT_TIMEOUT: Duration = Duration::from_millis(100);

/// Reads a body, and responds with its length; `/silent` gets no response.
async fn respond_with_length(request: Request<Incoming>) -> Response<crate::harness::TestBody> {
    let is_silent = request.uri().path() == "/silent";
    let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
    if is_silent {
        pending::<()>().await;
    }
    Response::new(text_body(body.map_or(0, |body| body.len()).to_string()))
}

async fn start_http2_server() -> TestBackend {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    TestBackend::start_raw(|stream| async move {
        let service = hyper::service::service_fn(|request| async {
            Ok::<_, std::convert::Infallible>(respond_with_length(request).await)
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

#[tokio::test]
async fn response_timeout_starts_after_request_body() {
    for (protocol, server) in
        [("http1", TestBackend::start(respond_with_length).await), ("http2", start_http2_server().await)]
    {
        let keys = format!("timeouts: {{ response: 100ms }}, protocol: {protocol}");
        let gateway = AdminGateway::start_upstream(&[&server], &keys);
        let mut upload = gateway.connect().await;
        upload.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n").await;
        for _ in 0..3 {
            // Another request has timed out in the meantime, so this one would have, too.
            assert_eq!(gateway.connect().await.get("/silent").await.status(), 504);
            upload.send("a").await;
        }
        assert_eq!(upload.read_response().await.body, "3");
        let silent = upload.request("POST /silent HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na").await;
        assert_eq!(silent.status(), 504);
    }
}

/// The timeout holds, too, if the client has sent nothing more when the server stops reading: it sends small pieces.
#[tokio::test]
async fn server_that_does_not_read_body_times_out() {
    let deaf = TestBackend::start_raw(|stream| async move {
        pending::<()>().await;
        drop(stream);
    })
    .await;
    let gateway = AdminGateway::start_upstream(&[&deaf], "timeouts: { idle: 100ms }");
    for piece in [1 << 10, 1 << 16] {
        let mut client = gateway.connect().await;
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n").await;
        client.send_until_blocked(piece).await;
        assert_eq!(client.read_response().await.status(), 504);
    }
}

#[tokio::test]
async fn connect_timeout_returns_504() {
    let mute = TestBackend::start_raw(|stream| async move {
        pending::<()>().await;
        drop(stream);
    })
    .await;
    for protocol in ["http1", "http2"] {
        // The TLS handshake does not complete.
        let start = |time: &str| {
            let app = format!(
                "{{ servers: 'https://{}', timeouts: {{ connect: {time} }}, protocol: {protocol} }}",
                mute.address
            );
            AdminGateway::start_policy(
                &format!("{LISTENERS}upstreams: {{ app: {app} }}\nroutes: app"),
                Rules::new(),
            )
        };
        let (slow, fast) = (start("1h"), start("100ms"));
        let connections = mute.connection_count();
        let mut client = slow.connect().await;
        let waiting = tokio::spawn(async move { client.get("/").await });
        while mute.connection_count() == connections {
            tokio::task::yield_now().await;
        }
        for _ in 0..2 {
            assert_eq!(fast.connect().await.get("/").await.status(), 504);
        }
        assert!(!waiting.is_finished(), "two connections timed out at the other gateway in the meantime");
    }

    // The TCP connection does not complete: the backlog is full.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = timeout(SHORT_TIMEOUT, TcpStream::connect(address)).await {
        waiting.push(stream.unwrap());
    }
    let app = format!("{{ servers: 'http://{address}', timeouts: {{ connect: 100ms }} }}");
    let policy = format!("{LISTENERS}upstreams: {{ app: {app} }}\nroutes: app");
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    assert_eq!(gateway.connect().await.get("/").await.status(), 504);
}

#[tokio::test]
async fn lingering_close_lets_client_read_response() {
    let server = TestBackend::start(respond_with_length).await;
    let mut config = test_config(&[&server]);
    config.connections.body_size = Some(1_000);
    let app = config.upstream_id("app").unwrap();
    let gateway =
        InProcessGateway::start_with_filter(config, move |head: &ParsedRequest| match head.path() {
            "/limited" => {
                let mut response = Response::new(Bytes::from_static(b"Later."));
                *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                Action::Respond(response.into())
            }
            _ => Action::Forward(app),
        })
        .await;
    for (head, status) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n", 413),
        ("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1000000\r\n", 413),
        ("POST /limited HTTP/1.1\r\nhost: a\r\ncontent-length: 900\r\ncontent-length: 901\r\n\r\n", 400),
        ("POST /limited HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n1000000\r\n", 429),
        ("GET / HTTP/1.1\r\nhost: a\r\nx-a: ", 431),
        ("POST / HTTP/1.1\r\ncontent-length: 900\r\n\r\n", 400),
    ] {
        let mut client = gateway.connect().await;
        client.send(head).await;
        // A reset would fail this, or lose the response.
        client.send_until_blocked(1 << 16).await;
        let response = client.read_response().await;
        assert_eq!(response.status(), status, "{head}");
        assert_eq!(response.header("connection"), Some("close"), "{head}");
        assert_eq!(client.read_to_end().await, "", "{head}");
    }
}

#[tokio::test]
async fn lingering_close_over_tls_lets_client_read_response() {
    let (_directory, certificates) = write_certificates();
    let server = TestBackend::start(respond_with_length).await;
    let gateway = start_tls_with(&server, &certificates, None, "connections: { max-body-size: 1kB }");
    let mut client = connect(gateway.address, &certificates.authority, b"http/1.1").await.unwrap();
    client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000000000\r\n\r\n").await.unwrap();
    // More than all buffers hold. A reset would fail this, or lose the response.
    for _ in 0..256 {
        let piece = [b'a'; 1 << 16];
        timeout(TEST_TIMEOUT, client.write_all(&piece)).await.expect("the gateway does not read").unwrap();
    }
    let mut response = String::new();
    timeout(TEST_TIMEOUT, client.read_to_string(&mut response)).await.unwrap().unwrap();
    assert!(response.starts_with("HTTP/1.1 413 "), "{response}");
    assert!(response.contains("\r\nconnection: close\r\n"), "{response}");
}

#[tokio::test]
async fn small_rejected_body_keeps_connection_alive() {
    let gateway = InProcessGateway::start_with_filter(
        test_config(&[&TestBackend::unreachable().await]),
        |_: &ParsedRequest| Action::Respond(Response::new(Bytes::from_static(b"Later.")).into()),
    )
    .await;
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        let head = "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n";
        assert_eq!(client.request(&format!("{head}body")).await.body, "Later.");
        // The body is sent after the head.
        client.send(head).await;
        tokio::task::yield_now().await;
        assert_eq!(client.request("body").await.body, "Later.");
    }
    // A client that expects 100 Continue gets the final response instead.
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n").await;
    let response = client.read_to_end().await;
    assert!(
        response.starts_with("HTTP/1.1 200 OK\r\n") && response.contains("connection: close\r\n"),
        "{response}"
    );
}

#[tokio::test]
async fn truncated_response_resets_http10_connection() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = RawClient::new(stream);
        wire.read_head().await;
        wire.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n").await;
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    let mut received = Vec::new();
    let end = timeout(TEST_TIMEOUT, client.stream.read_to_end(&mut received)).await.unwrap();
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset, "after {received:?}");
}

#[tokio::test]
async fn idle_tunnel_is_closed() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = RawClient::new(stream);
        wire.read_head().await;
        wire.send("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n").await;
        let (mut read, mut write) = wire.stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let gateway = AdminGateway::start(&server, "connections: { tunnel-timeout: 100ms, idle-timeout: 20s }");
    let upgrade = "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: echo\r\n\r\n";
    let (mut talking, mut silent) = (gateway.connect().await, gateway.connect().await);
    for tunnel in [&mut talking, &mut silent] {
        tunnel.send(upgrade).await;
        assert!(tunnel.read_head().await.starts_with("HTTP/1.1 101 "));
    }
    let mut byte = [0];
    let silence = silent.stream.read(&mut byte);
    let talk = async {
        loop {
            talking.send("ping").await;
            talking.read_until(b"ping").await;
        }
    };
    tokio::select! {
        end = timeout(TEST_TIMEOUT, silence) => assert_eq!(end.unwrap().unwrap(), 0),
        () = talk => {}
    }
    talking.send("pong").await;
    talking.read_until(b"pong").await;
    talking.stream.shutdown().await.unwrap();
}
