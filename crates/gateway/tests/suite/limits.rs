//! Limits of connections, sizes and times, and graceful shutdown.

use crate::{
    admin_api::AdminGateway,
    harness::{InProcessGateway, TEST_TIMEOUT, TestBackend, text_body},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc,
};

#[tokio::test]
async fn slow_request_head_times_out() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { header-timeout: 100ms }");
    let other = AdminGateway::start(&server, "connections: { header-timeout: 1h }");
    let mut unfinished = other.connect().await;
    unfinished.send("GET / HT").await;

    let mut patient = gateway.connect().await;
    assert_eq!(patient.get("/").await.status(), 200);
    let mut slow = gateway.connect().await;
    slow.send("GET / HTTP/1.1\r\nhost: a\r\nx-a").await;
    assert_eq!(slow.read_to_end().await, "");
    // The other connection has released its buffers, and gets new ones.
    assert_eq!(patient.get("/").await.status(), 200);
    patient.send("GET / HT").await;
    assert_eq!(patient.read_to_end().await, "");
    assert_eq!(server.connection_count(), 1);
    let complete = unfinished.request("TP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(complete.status(), 200, "two heads timed out at the first gateway in the meantime");
}

#[tokio::test]
async fn idle_client_times_out() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { idle-timeout: 100ms }");
    assert_eq!(gateway.connect().await.read_to_end().await, "");
    let mut client = gateway.connect().await;
    assert_eq!(client.get("/").await.status(), 200);
    assert_eq!(client.read_to_end().await, "");
}

#[tokio::test]
async fn stalled_request_body_returns_408() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 100ms }");
    let mut client = gateway.connect().await;
    let response = client.request("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nhello").await;
    assert_eq!(response.status(), 408);
    assert_eq!(client.read_to_end().await, "");
}

/// Each pause is far shorter than `body-timeout`.
#[tokio::test]
async fn slow_request_body_returns_408() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 300ms, min-body-rate: 1kB/s }");
    let (mut reader, mut writer) = TcpStream::connect(gateway.address).await.unwrap().into_split();
    writer.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 100\r\n\r\n").await.unwrap();
    let sending = tokio::spawn(async move {
        for _ in 0..100 {
            if writer.write_all(b"a").await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    let mut start = [0; 12];
    reader.read_exact(&mut start).await.unwrap();
    assert_eq!(start, *b"HTTP/1.1 408");
    sending.abort();
}

#[tokio::test]
async fn client_that_does_not_read_times_out() {
    let (sent, mut ended) = mpsc::unbounded_channel();
    let server = TestBackend::start(move |_: Request<Incoming>| {
        let sent = sent.clone();
        async move {
            let (mut response, body) = Channel::<Bytes, Infallible>::new(1);
            tokio::spawn(async move {
                let piece = Bytes::from(vec![0; 1 << 16]);
                while response.send_data(piece.clone()).await.is_ok() {}
                let _ = sent.send(());
            });
            Response::new(body.map_err(|never| match never {}).boxed())
        }
    })
    .await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 100ms }");
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    // The gateway closes the upstream connection although the client keeps its own open.
    ended.recv().await.unwrap();
    drop(client);
}

/// A client may send this much of its requests before a server reads them.
#[tokio::test]
async fn http2_windows_bound_uploads() {
    const SETTINGS: u8 = 4;
    const WINDOW_UPDATE: u8 = 8;
    const INITIAL_WINDOW_SIZE: u16 = 4;
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "");
    let mut client = gateway.connect().await;
    client
        .send([&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &[0, 0, 0, SETTINGS, 0, 0, 0, 0, 0]].concat())
        .await;
    let (mut stream_window, mut connection_window) = (None, None);
    while stream_window.is_none() || connection_window.is_none() {
        let head = client.read_exact(9).await;
        let payload = client.read_exact(u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize).await;
        let number = |bytes: &[u8]| u32::from_be_bytes(bytes.try_into().unwrap());
        match head[3] {
            SETTINGS => {
                let mut settings = payload.chunks(6);
                let window = settings.find(|setting| setting[..2] == INITIAL_WINDOW_SIZE.to_be_bytes());
                stream_window = stream_window.or(window.map(|setting| number(&setting[2..])));
            }
            WINDOW_UPDATE => connection_window = Some(65_535 + number(&payload)),
            _ => {}
        }
    }
    assert_eq!((stream_window, connection_window), (Some(64 << 10), Some(512 << 10)));
}

#[tokio::test]
async fn stalled_http2_stream_is_reset_alone() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let (sent, mut ended) = mpsc::unbounded_channel();
    let server = TestBackend::start(move |request: Request<Incoming>| {
        let sent = sent.clone();
        async move {
            if request.uri().path() != "/endless" {
                return Response::new(text_body("ok"));
            }
            let (mut response, body) = Channel::<Bytes, Infallible>::new(1);
            tokio::spawn(async move {
                let piece = Bytes::from(vec![0; 1 << 16]);
                while response.send_data(piece.clone()).await.is_ok() {}
                let _ = sent.send(());
            });
            Response::new(body.map_err(|never| match never {}).boxed())
        }
    })
    .await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 100ms }");
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let get = |path: &str| {
        Request::get(format!("http://a{path}")).body(http_body_util::Empty::<Bytes>::new()).unwrap()
    };
    let endless = sender.send_request(get("/endless")).await.unwrap();
    // The gateway closes the upstream connection although the client keeps its own open.
    tokio::time::timeout(TEST_TIMEOUT, ended.recv()).await.unwrap().unwrap();
    let response = sender.send_request(get("/")).await.unwrap();
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "ok");
    assert!(endless.into_body().collect().await.is_err());
}

#[tokio::test]
async fn oversized_request_is_rejected() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { max-body-size: 10B, max-header-size: 16KiB }");
    for (request, status) in [
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\n0123456789".to_owned(), 200),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 11\r\n\r\n".to_owned(), 413),
        (
            "POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n8\r\n01234567\r\n8\r\n01234567\r\n".to_owned(),
            413,
        ),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "a".repeat(10_000)), 200),
        (format!("GET / HTTP/1.1\r\nhost: a\r\nx-a: {}\r\n\r\n", "a".repeat(20_000)), 431),
        (format!("GET /{} HTTP/1.1\r\nhost: a\r\n\r\n", "a".repeat(70_000)), 431),
    ] {
        let mut client = gateway.connect().await;
        client.send(&request).await;
        let start = &request[..request.len().min(80)];
        if status == 200 {
            assert_eq!(client.read_response().await.status(), status, "{start}");
            continue;
        }
        let response = client.read_to_end().await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{start} got {response}");
        assert!(response.contains("\r\nconnection: close\r\n"), "{start} got {response}");
    }
}

#[tokio::test]
async fn connections_are_limited_in_total_and_per_client() {
    let server = TestBackend::start_echo().await;
    for key in ["max", "max-per-client"] {
        let gateway = AdminGateway::start(&server, &format!("connections: {{ {key}: 2 }}"));
        let (mut first, mut second) = (gateway.connect().await, gateway.connect().await);
        assert_eq!(first.get("/").await.status(), 200);
        assert_eq!(second.get("/").await.status(), 200);
        let response = gateway.connect().await.get("/").await;
        assert_eq!((response.status(), response.header("connection")), (503, Some("close")), "{key}");
        // A client that sends nothing gets no response.
        assert_eq!(gateway.connect().await.read_to_end().await, "");
        drop(first);
        // The permit is released when the gateway notices the close.
        loop {
            let mut third = gateway.connect().await;
            third.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
            if third.read_to_end().await.starts_with("HTTP/1.1 200 ") {
                break;
            }
        }
    }
}

#[tokio::test]
async fn slow_server_times_out() {
    let silent = TestBackend::start_raw(|stream| async move {
        let open: Mutex<Option<TcpStream>> = Mutex::new(Some(stream));
        std::future::pending::<()>().await;
        drop(open);
    })
    .await;
    let gateway = AdminGateway::start_upstream(&[&silent], "timeouts: { response: 100ms }");
    assert_eq!(gateway.connect().await.get("/").await.status(), 504);

    // In the middle of a body no error can be sent; the client still sees the close.
    let stopping = TestBackend::start(|_| async {
        let (mut response, body) = Channel::<Bytes, Infallible>::new(1);
        tokio::spawn(async move {
            let _ = response.send_data(Bytes::from_static(b"abc")).await;
            std::future::pending::<()>().await;
            drop(response);
        });
        Response::new(body.map_err(|never| match never {}).boxed())
    })
    .await;
    let gateway = AdminGateway::start_upstream(&[&stopping], "timeouts: { idle: 100ms }");
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.read_to_end().await.ends_with("\r\n3\r\nabc\r\n"));
}

#[tokio::test]
async fn shutdown_drains_requests_in_flight() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let go = Arc::new(tokio::sync::Notify::new());
    let let_go = go.clone();
    let server = TestBackend::start(move |_| {
        let (arrived, go) = (arrived.clone(), let_go.clone());
        async move {
            let _ = arrived.send(());
            go.notified().await;
            Response::new(text_body("done"))
        }
    })
    .await;
    let mut gateway = InProcessGateway::start(&[&server]).await;
    let (mut idle, mut busy) = (gateway.connect().await, gateway.connect().await);
    busy.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrivals.recv().await.unwrap();
    gateway.stop();
    assert_eq!(idle.read_to_end().await, "");
    assert!(TcpStream::connect(gateway.address).await.is_err());
    go.notify_one();
    let response = busy.read_response().await;
    assert_eq!((response.status(), response.body.as_str()), (200, "done"));
    assert_eq!(response.header("connection"), Some("close"));
    gateway.wait_stopped().await;
}

#[tokio::test]
async fn shutdown_ends_after_drain_timeout() {
    let (arrived, mut arrivals) = mpsc::unbounded_channel();
    let server = TestBackend::start(move |_| {
        let _ = arrived.send(());
        std::future::pending()
    })
    .await;
    let gateway = AdminGateway::start(&server, "connections: { drain-timeout: 100ms }");
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrivals.recv().await.unwrap();
    gateway.stop().await;
    assert_eq!(client.read_to_end().await, "");
}
