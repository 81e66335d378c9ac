//! HTTP/2 bodies that end early: by a reset or a GOAWAY without an error, which hyper reports as the end of the body.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    harness::{RawClient, TEST_TIMEOUT, TestBackend},
    normalization::frame,
};
use bytes::Bytes;
use h2::Reason;
use http::Request;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tidegate_rule::Rules;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::timeout,
};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const END_HEADERS: u8 = 4;

async fn connect(address: SocketAddr) -> h2::client::SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

/// Sends the head of an upload and the start of its body.
fn start_upload(
    client: &mut h2::client::SendRequest<Bytes>,
    length: Option<u64>,
    body: &'static str,
) -> (h2::client::ResponseFuture, h2::SendStream<Bytes>) {
    let mut request = Request::post("http://a/upload");
    if let Some(length) = length {
        request = request.header("content-length", length);
    }
    let (response, mut stream) = client.send_request(request.body(()).unwrap(), false).unwrap();
    stream.send_data(Bytes::from_static(body.as_bytes()), false).unwrap();
    (response, stream)
}

/// A server that reports what each connection receives, until it is closed.
async fn start_recorder() -> (TestBackend, mpsc::UnboundedReceiver<mpsc::UnboundedReceiver<Vec<u8>>>) {
    let (opened, connections) = mpsc::unbounded_channel();
    let server = TestBackend::start_raw(move |mut stream| {
        let (sender, received) = mpsc::unbounded_channel();
        let _ = opened.send(received);
        async move {
            let mut piece = vec![0; 4_096];
            while let Ok(length @ 1..) = stream.read(&mut piece).await {
                let _ = sender.send(piece[..length].to_vec());
            }
        }
    })
    .await;
    (server, connections)
}

#[tokio::test]
async fn reset_upload_is_incomplete_for_the_server() {
    for (length, end) in [(None, "3\r\nabc\r\n"), (Some(1_000), "abc")] {
        let (server, mut connections) = start_recorder().await;
        let gateway = AdminGateway::start(&server, "");
        let mut client = connect(gateway.address).await;
        let (_response, mut stream) = start_upload(&mut client, length, "abc");
        let mut received = String::new();
        let mut pieces = timeout(TEST_TIMEOUT, connections.recv()).await.unwrap().unwrap();
        let mut next = async |received: &mut String| match timeout(TEST_TIMEOUT, pieces.recv()).await.unwrap()
        {
            Some(piece) => {
                received.push_str(&String::from_utf8(piece).unwrap());
                true
            }
            None => false,
        };
        while !received.ends_with(end) {
            assert!(next(&mut received).await, "{received}");
        }
        stream.send_reset(Reason::NO_ERROR);
        // The gateway closes the connection, because the request is incomplete.
        while next(&mut received).await {}
        assert!(received.ends_with(end), "{received}");
    }
}

/// The response may arrive at the same time as the reset. The rest of the body must not be taken from the next request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_that_misses_a_part_of_a_request_is_not_reused() {
    // Each connection responds to its upload on a signal, and reports the bytes that follow.
    let (opened, mut uploads) = mpsc::unbounded_channel();
    let (misused, mut misuses) = mpsc::unbounded_channel();
    let server = TestBackend::start_raw(move |stream| {
        let (opened, misused) = (opened.clone(), misused.clone());
        async move {
            let mut wire = RawClient::new(stream);
            let mut buffer = [0; 1];
            if wire.stream.peek(&mut buffer).await.unwrap_or(0) == 0 {
                return;
            }
            let head = wire.read_head().await;
            if !head.starts_with("POST ") {
                wire.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok").await;
                return;
            }
            wire.read_exact(10).await;
            let (go, respond) = oneshot::channel::<()>();
            let _ = opened.send(go);
            let _ = respond.await;
            wire.send("HTTP/1.1 204 No Content\r\n\r\n").await;
            let mut rest = Vec::new();
            let _ = wire.stream.read_to_end(&mut rest).await;
            if !rest.is_empty() {
                let _ = misused.send(String::from_utf8_lossy(&rest).into_owned());
            }
        }
    })
    .await;
    let gateway = AdminGateway::start(&server, "");
    for _ in 0..200 {
        let mut client = connect(gateway.address).await;
        let (response, mut stream) = start_upload(&mut client, Some(1_000), "0123456789");
        let go = timeout(TEST_TIMEOUT, uploads.recv()).await.unwrap().unwrap();
        let resetting = tokio::spawn(async move {
            stream.send_reset(Reason::NO_ERROR);
            let _ = response.await;
        });
        let _ = go.send(());
        timeout(TEST_TIMEOUT, resetting).await.unwrap().unwrap();
        let mut next = gateway.connect().await;
        next.send("GET /next HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
        let response = timeout(TEST_TIMEOUT / 4, next.read_to_end()).await;
        assert!(response.is_ok_and(|text| text.ends_with("ok")), "{:?}", misuses.try_recv());
    }
}

/// The end of a response over HTTP/2 that the server does not complete.
#[derive(Clone, Copy, Debug)]
enum EarlyEnd {
    Reset,
    GoAway,
}

/// Reads a frame; returns its type, its flags and its stream. `None` at the end of the connection.
async fn read_frame(stream: &mut TcpStream) -> Option<(u8, u8, u32)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head).await.ok()?;
    let [high, middle, low, kind, flags, id @ ..] = head;
    let mut payload = vec![0; u32::from_be_bytes([0, high, middle, low]) as usize];
    stream.read_exact(&mut payload).await.ok()?;
    Some((kind, flags, u32::from_be_bytes(id)))
}

/// A server with HTTP/2 whose responses end after 3 bytes.
async fn start_truncating(length: Option<&'static str>, end: EarlyEnd) -> TestBackend {
    // 200, and a literal `content-length`.
    let mut fields = vec![0x88];
    if let Some(length) = length {
        fields.extend([0x0f, 0x0d, u8::try_from(length.len()).unwrap()]);
        fields.extend(length.as_bytes());
    }
    TestBackend::start_raw(move |mut stream| {
        let fields = fields.clone();
        async move {
            stream.read_exact(&mut [0; 24]).await.unwrap();
            stream.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
            // The gateway closes the connection after GOAWAY.
            while let Some((kind, flags, id)) = read_frame(&mut stream).await {
                let writes = match kind {
                    // The acknowledgement.
                    SETTINGS if flags == 0 => vec![frame(SETTINGS, 1, 0, &[])],
                    HEADERS => vec![
                        [frame(HEADERS, END_HEADERS, id, &fields), frame(DATA, 0, id, b"abc")].concat(),
                        match end {
                            EarlyEnd::Reset => frame(RST_STREAM, 0, id, &[0; 4]),
                            EarlyEnd::GoAway => frame(GOAWAY, 0, 0, &[0; 8]),
                        },
                    ],
                    _ => Vec::new(),
                };
                for bytes in writes {
                    if stream.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn truncated_http2_response_is_incomplete_for_the_client() {
    for end in [EarlyEnd::Reset, EarlyEnd::GoAway] {
        for length in [None, Some("10")] {
            let server = start_truncating(length, end).await;
            let gateway = AdminGateway::start_upstream(&[&server], "protocol: http2");
            let mut client = gateway.connect().await;
            client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
            let received = client.read_to_end().await;
            let (head, body) = received.split_once("\r\n\r\n").unwrap();
            assert!(head.starts_with("HTTP/1.1 200 ") && !body.ends_with("0\r\n\r\n"), "{end:?}: {received}");

            let stream = TcpStream::connect(gateway.address).await.unwrap();
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
                    .await
                    .unwrap();
            tokio::spawn(connection);
            let request = Request::get("http://a/").body(Empty::<Bytes>::new()).unwrap();
            // A reset can overtake the head.
            let exchange = async { sender.send_request(request).await?.into_body().collect().await };
            let received = timeout(TEST_TIMEOUT, exchange).await.unwrap();
            assert!(received.is_err(), "{end:?}, {length:?}");
        }
    }
}

#[tokio::test]
async fn truncated_http2_response_is_not_stored() {
    for end in [EarlyEnd::Reset, EarlyEnd::GoAway] {
        let server = start_truncating(None, end).await;
        let policy = format!(
            "{LISTENERS}upstreams: {{ app: {{ servers: 'http://{}', protocol: http2 }} }}\nroutes: app\n\
             rules: [{{ name: pages, quota: 1 total, on-limit: {{ fallback: {{ cache: 1h, body: none }} }} }}]",
            server.address
        );
        let gateway = AdminGateway::start_policy(&policy, Rules::new());
        let mut client = gateway.connect().await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        assert!(client.read_to_end().await.contains("abc"));
        assert_eq!(gateway.get("/").await.body, "none", "{end:?}");
    }
}
