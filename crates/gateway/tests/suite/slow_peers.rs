//! Clients and servers that read slowly, send at the wrong time, or stop in the middle of a message.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    harness::{InProcessGateway, TEST_TIMEOUT, TestBackend, TestBody, test_config, text_body},
    tls::{connect, connect_tls, start_tls_with, write_certificates},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::body::Incoming;
use std::{convert::Infallible, io, sync::Arc};
use tidegate_http_server::Roots;
use tidegate_rule::Rules;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    sync::{Notify, Semaphore, mpsc},
    time::timeout,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
/// More than all buffers between a client and a server.
pub(crate) const LARGE: usize = 20_000_000;

/// A body without an end. The receiver gets a message when the gateway stops reading it.
pub(crate) fn endless_body(ended: &mpsc::UnboundedSender<()>) -> TestBody {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
    let ended = ended.clone();
    tokio::spawn(async move {
        let piece = Bytes::from(vec![b'a'; 1 << 16]);
        while sender.send_data(piece.clone()).await.is_ok() {}
        let _ = ended.send(());
    });
    body.map_err(|never| match never {}).boxed()
}

async fn start_endless() -> (TestBackend, mpsc::UnboundedReceiver<()>) {
    let (sent, ended) = mpsc::unbounded_channel();
    let server = TestBackend::start(move |_: Request<Incoming>| {
        std::future::ready(Response::new(endless_body(&sent)))
    })
    .await;
    (server, ended)
}

/// A gateway that closes idle connections after about 200 ms: a clock for pauses.
pub(crate) async fn start_clock() -> AdminGateway {
    AdminGateway::start(&TestBackend::start_echo().await, "connections: { idle-timeout: 150ms }")
}

/// Waits until a connection that sends nothing has timed out.
pub(crate) async fn pause(clock: &AdminGateway) {
    assert_eq!(clock.connect().await.read_to_end().await, "");
}

/// A socket whose kernel buffers little.
pub(crate) fn socket_with_small_buffer() -> TcpSocket {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket
}

async fn read_all(mut from: impl AsyncRead + Unpin) -> (Vec<u8>, io::Result<usize>) {
    let mut all = Vec::new();
    let end = timeout(TEST_TIMEOUT, from.read_to_end(&mut all)).await.expect("nothing was received");
    (all, end)
}

/// Reads the head of a request, and returns the bytes of its body that came with it.
async fn read_request_head(stream: &mut TcpStream) -> Vec<u8> {
    let mut received = Vec::new();
    loop {
        if let Some(end) = received.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            return received.split_off(end + 4);
        }
        assert!(stream.read_buf(&mut received).await.unwrap() > 0);
    }
}

#[tokio::test]
async fn tls_client_that_does_not_read_times_out() {
    let (_directory, certificates) = write_certificates();
    let (server, mut ended) = start_endless().await;
    let gateway = start_tls_with(&server, &certificates, None, "connections: { body-timeout: 100ms }");
    let mut client = connect(gateway.address, &certificates.authority, b"http/1.1").await.unwrap();
    client.write_all(GET).await.unwrap();
    // The gateway closes the upstream connection although the client keeps its own open.
    timeout(TEST_TIMEOUT, ended.recv()).await.unwrap().unwrap();
    drop(client);
}

/// Each read is far larger than nothing, but the rate is below the minimum.
#[tokio::test]
async fn client_below_the_minimum_rate_times_out() {
    let (server, mut ended) = start_endless().await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 300ms, min-body-rate: 1GB/s }");
    let clock = start_clock().await;
    let mut client = gateway.connect().await;
    client.send(GET).await;
    let reading = tokio::spawn(async move {
        let mut piece = vec![0; 1 << 16];
        while let Ok(1..) = client.stream.read(&mut piece).await {
            pause(&clock).await;
        }
    });
    timeout(TEST_TIMEOUT, ended.recv()).await.unwrap().unwrap();
    reading.abort();
}

/// Each pause is shorter than `body-timeout`.
#[tokio::test]
async fn slow_http2_upload_returns_408() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 500ms, min-body-rate: 1kB/s }");
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let clock = start_clock().await;
    let (mut upload, body) = Channel::<Bytes, Infallible>::new(1);
    let sending = tokio::spawn(async move {
        while upload.send_data(Bytes::from_static(b"a")).await.is_ok() {
            pause(&clock).await;
        }
    });
    let response = sender.send_request(Request::post("http://a/").body(body).unwrap());
    assert_eq!(timeout(TEST_TIMEOUT, response).await.unwrap().unwrap().status(), 408);
    sending.abort();
}

/// Sizes of bodies, of which some end when the buffers of a connection are full, but that of TLS is not.
async fn body_sizes() -> impl Iterator<Item = usize> {
    let socket = socket_with_small_buffer();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let listener = socket.listen(1).unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let piece = [0; 1 << 14];
    let mut capacity = 0;
    while timeout(TEST_TIMEOUT / 100, stream.write_all(&piece)).await.is_ok() {
        capacity += piece.len();
    }
    (capacity - capacity / 4..capacity + capacity / 8).step_by(30_000)
}

/// TLS buffers the end of a response when the socket is full.
#[tokio::test]
async fn end_of_response_waits_for_slow_tls_client() {
    let (_directory, certificates) = write_certificates();
    let server = TestBackend::start(|request: Request<Incoming>| async move {
        let size = request.uri().path()[1..].parse().unwrap();
        Response::new(text_body(vec![b'a'; size]))
    })
    .await;
    let gateway = start_tls_with(&server, &certificates, None, "connections: { body-timeout: 1h }");
    let mut clients = Vec::new();
    for size in body_sizes().await {
        let socket = socket_with_small_buffer();
        let stream = socket.connect(gateway.address).await.unwrap();
        let mut client = connect_tls(stream, &certificates.authority, b"http/1.1").await.unwrap();
        let request = format!("GET /{size} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        clients.push((client, size));
    }
    // In the meantime the gateway releases idle connections.
    let clock = start_clock().await;
    for _ in 0..2 {
        pause(&clock).await;
    }
    for (client, size) in clients {
        let (received, end) = read_all(client).await;
        assert!(end.is_ok() && received.len() > size, "{} of {size} bytes, {end:?}", received.len());
    }
}

/// TLS buffers the end of a request when the socket is full.
#[tokio::test]
async fn end_of_request_is_sent_to_slow_tls_server() {
    let (_directory, certificates) = write_certificates();
    let chain =
        CertificateDer::pem_file_iter(&certificates.certificate).unwrap().map(Result::unwrap).collect();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&certificates.key).unwrap())
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let socket = socket_with_small_buffer();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let resume = Arc::new(Semaphore::new(0));
    let resumed = resume.clone();
    let server = TestBackend::start_on(socket.listen(64).unwrap(), move |stream| {
        let (acceptor, resumed) = (acceptor.clone(), resumed.clone());
        async move {
            let mut stream = acceptor.accept(stream).await.unwrap();
            let _permit = resumed.acquire().await.unwrap();
            let mut received = vec![0; 1 << 16];
            let mut end = Vec::new();
            while !end.ends_with(b"end") {
                let Ok(length @ 1..) = stream.read(&mut received).await else { return };
                end.extend_from_slice(&received[length.saturating_sub(3)..length]);
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
            stream.flush().await.unwrap();
        }
    });
    let mut config = test_config(&[&server]);
    let app = config.upstreams.get_mut("app").unwrap();
    app.servers[0].url = format!("https://{}", server.address);
    app.timeouts.response = TEST_TIMEOUT;
    config.roots = Roots::File(certificates.authority.clone());
    let gateway = InProcessGateway::start_with(config).await;
    let mut clients = Vec::new();
    for size in body_sizes().await {
        let mut client = gateway.connect().await;
        client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {size}\r\n\r\n")).await;
        client.send([vec![b'a'; size - 3], b"end".to_vec()].concat()).await;
        clients.push((client, size));
    }
    pause(&start_clock().await).await;
    resume.add_permits(Semaphore::MAX_PERMITS);
    for (mut client, size) in clients {
        let response = client.read_response().await;
        assert_eq!((response.status(), &*response.body), (200, "ok"), "{size} bytes");
    }
}

/// The body of a request to a server with HTTP/2 is read in another task, which must not wait for the socket instead of the connection.
#[tokio::test]
async fn upload_to_http2_server_does_not_stop_the_response() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let server = TestBackend::start_raw(|stream| async move {
        let service = hyper::service::service_fn(|request: Request<Incoming>| async {
            tokio::spawn(request.into_body().collect());
            Ok::<_, Infallible>(Response::new(text_body(vec![b'a'; LARGE])))
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await;
    let gateway = AdminGateway::start_upstream(&[&server], "protocol: http2");
    let mut client = gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n").await;
    let head = client.read_head().await;
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    // Until the gateway cannot write.
    let clock = start_clock().await;
    pause(&clock).await;
    client.send("5\r\nhello\r\n").await;
    pause(&clock).await;
    client.read_exact(LARGE).await;
}

#[tokio::test]
async fn no_100_continue_after_the_response_has_begun() {
    let server = TestBackend::start_raw(|mut stream| async move {
        let mut received = read_request_head(&mut stream).await.len();
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n").await.unwrap();
        // Until the gateway waits for the rest of the body.
        while received < 4_000 {
            let mut piece = [0; 4_000];
            received += stream.read(&mut piece).await.unwrap();
        }
        let _ = stream.write_all(&[b'a'; 100]).await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: slow, bandwidth: { up: 40kB/s } }]");
    let mut client = gateway.connect().await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5000\r\n\r\n";
    client.send([head.as_bytes(), &[b'b'; 4_000]].concat()).await;
    let response = client.read_response().await;
    assert_eq!((response.status(), response.body), (200, "a".repeat(100)));
}

#[tokio::test]
async fn interim_response_is_sent_for_uploads_to_any_server() {
    use hyper_util::rt::{TokioExecutor, TokioIo};
    let http2 = TestBackend::start_raw(|stream| async move {
        let service = hyper::service::service_fn(|request: Request<Incoming>| async {
            let body = request.into_body().collect().await.unwrap().to_bytes();
            Ok::<_, Infallible>(Response::new(text_body(body)))
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await;
    let http1 = TestBackend::start(|request: Request<Incoming>| async {
        Response::new(text_body(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    for (server, protocol) in [(http1, "http1"), (http2, "http2")] {
        let gateway = AdminGateway::start_upstream(&[&server], &format!("protocol: {protocol}"));
        let mut client = gateway.connect().await;
        client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n").await;
        assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n", "{protocol}");
        client.send("hello").await;
        assert_eq!(client.read_response().await.body, "hello", "{protocol}");
        // The connection is reused.
        client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\na").await;
        assert_eq!(client.read_response().await.body, "a", "{protocol}");
    }
}

/// A client of HTTP/1.0 would take a close for the end of the body.
#[tokio::test]
async fn http10_response_that_timed_out_ends_with_a_reset() {
    let (server, mut ended) = start_endless().await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 100ms }");
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.0\r\nhost: a\r\n\r\n").await;
    timeout(TEST_TIMEOUT, ended.recv()).await.unwrap().unwrap();
    let (_, end) = read_all(client.stream).await;
    assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn upgrade_before_the_end_of_the_request_is_an_error() {
    let server = TestBackend::start_raw(|mut stream| async move {
        read_request_head(&mut stream).await;
        let _ = stream
            .write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n")
            .await;
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest).await;
    })
    .await;
    let gateway = AdminGateway::start(&server, "");
    let mut client = gateway.connect().await;
    let head =
        "POST / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: x\r\ncontent-length: 10\r\n\r\nhello";
    client.send(head).await;
    let response = client.read_response().await;
    assert_eq!((response.status(), response.header("connection")), (502, Some("close")));
}

#[tokio::test]
async fn error_with_unread_body_announces_the_close() {
    let server = TestBackend::unreachable().await;
    let gateway = AdminGateway::start(&server, "");
    let mut client = gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 10\r\n\r\n").await;
    let response = client.read_response().await;
    assert_eq!((response.status(), response.header("connection")), (502, Some("close")));
}

/// The time that the client takes is not the time of the server.
#[tokio::test]
async fn slow_client_does_not_time_out_the_server() {
    let resume = Arc::new(Notify::new());
    let resumed = resume.clone();
    let server = TestBackend::start_raw(move |mut stream| {
        let resumed = resumed.clone();
        async move {
            read_request_head(&mut stream).await;
            let head = b"HTTP/1.1 200 OK\r\ncontent-length: 4001\r\n\r\n";
            stream.write_all(&[&head[..], &[b'a'; 4_000]].concat()).await.unwrap();
            resumed.notified().await;
            let _ = stream.write_all(b"b").await;
        }
    })
    .await;
    // The first 4,000 bytes take 400 ms.
    let gateway = AdminGateway::start_policy(
        &format!(
            "{LISTENERS}upstreams: {{ app: {{ servers: 'http://{}', timeouts: {{ idle: 200ms }} }} }}\nroutes: app\n\
             rules: [{{ name: slow, bandwidth: 10kB/s }}]",
            server.address
        ),
        Rules::new(),
    );
    let mut client = gateway.connect().await;
    client.send(GET).await;
    client.read_head().await;
    client.read_exact(4_000).await;
    resume.notify_one();
    assert_eq!(client.read_exact(1).await, b"b");
}

/// A server that sends a large response while it receives a large request.
pub(crate) async fn start_full_duplex() -> TestBackend {
    TestBackend::start_raw(|mut stream| async move {
        let mut received = read_request_head(&mut stream).await.len();
        let (mut reader, mut writer) = stream.split();
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {LARGE}\r\n\r\n");
        let sending = async {
            writer.write_all(head.as_bytes()).await.unwrap();
            let _ = writer.write_all(&vec![b'a'; LARGE]).await;
        };
        let receiving = async {
            let mut piece = vec![0; 1 << 16];
            while received < LARGE {
                let Ok(length @ 1..) = reader.read(&mut piece).await else { return };
                received += length;
            }
        };
        tokio::join!(sending, receiving);
    })
    .await
}

/// A client may send its whole request before it reads the response.
#[tokio::test]
async fn request_is_forwarded_while_the_client_does_not_read() {
    let server = start_full_duplex().await;
    let gateway = AdminGateway::start(&server, "connections: { max-body-size: none }");
    let mut client = gateway.connect().await;
    client.send(format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {LARGE}\r\n\r\n")).await;
    timeout(TEST_TIMEOUT, client.send(vec![b'b'; LARGE])).await.expect("the upload does not end");
    client.read_head().await;
    client.read_exact(LARGE).await;
}

#[tokio::test]
async fn trailers_of_the_connection_are_removed_from_responses() {
    let server = TestBackend::start_raw(|mut stream| async move {
        read_request_head(&mut stream).await;
        let body = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\
                    transfer-encoding: chunked\r\nconnection: x\r\ncontent-length: 5\r\nx-sum: 1\r\n\r\n";
        stream.write_all(body.as_bytes()).await.unwrap();
    })
    .await;
    let gateway = AdminGateway::start(&server, "");
    let mut client = gateway.connect().await;
    client.send(GET).await;
    client.read_head().await;
    assert_eq!(client.read_until(b"0\r\n").await, b"1\r\na\r\n0\r\n");
    assert_eq!(client.read_head().await, "x-sum: 1\r\n\r\n");
}

/// A part of a TLS record is no request.
#[tokio::test]
async fn partial_tls_record_does_not_extend_the_idle_timeout() {
    let (_directory, certificates) = write_certificates();
    let server = TestBackend::start_echo().await;
    let gateway = start_tls_with(&server, &certificates, None, "connections: { idle-timeout: 500ms }");
    let mut client = connect(gateway.address, &certificates.authority, b"http/1.1").await.unwrap();
    client.write_all(GET).await.unwrap();
    client.read_exact(&mut [0; 12]).await.unwrap();
    let (mut stream, _) = client.into_inner();
    let clock = start_clock().await;
    // Each byte is sent before the idle timeout has passed since the previous one.
    for byte in [0x17, 3, 3, 0x40].into_iter().chain([0; 40]) {
        if stream.write_all(&[byte]).await.is_err() {
            return;
        }
        pause(&clock).await;
    }
    panic!("the connection is still open");
}
