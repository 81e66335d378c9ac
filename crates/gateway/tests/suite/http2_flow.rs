//! Streams of HTTP/2 that do not wait for each other: uploads, slow readers, and responses that are not read.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TEST_TIMEOUT, TestBackend, TestBody, text_body},
    normalization::frame,
    slow_peers::{LARGE, endless_body, pause, socket_with_small_buffer, start_clock, start_full_duplex},
};
use bytes::Bytes;
use h2::{RecvStream, SendStream, client::SendRequest};
use http::{Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::{body::Incoming, server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    future::{pending, poll_fn},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, mpsc},
    time::timeout,
};

const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

/// The flow control window of a connection that does not limit its streams.
const LARGE_WINDOW: u32 = 1 << 24;

/// A client that lets the gateway send this many bytes of each response.
async fn connect(address: SocketAddr, stream_window: u32) -> SendRequest<Bytes> {
    connect_with(address, stream_window, LARGE_WINDOW).await
}

/// A client that lets the gateway send this many bytes of each response, and of all of them together.
async fn connect_with(address: SocketAddr, stream_window: u32, window: u32) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.unwrap();
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(stream_window).initial_connection_window_size(window);
    let (sender, connection) = builder.handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(connection);
    sender.ready().await.unwrap()
}

/// Requests a path; returns the body of the response.
async fn get(client: &SendRequest<Bytes>, path: &str) -> RecvStream {
    let request = Request::get(format!("http://a{path}")).body(()).unwrap();
    let mut client = timeout(TEST_TIMEOUT, client.clone().ready()).await.unwrap().unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    timeout(TEST_TIMEOUT, response).await.unwrap().unwrap().into_body()
}

/// Requests this many endless responses, and reads none of them.
async fn stall(client: &SendRequest<Bytes>, streams: usize) -> Vec<RecvStream> {
    let mut bodies = Vec::new();
    for _ in 0..streams {
        bodies.push(get(client, "/endless").await);
    }
    bodies
}

/// Sends as much as the gateway takes, up to this many bytes.
async fn upload(stream: &mut SendStream<Bytes>, length: usize, sent: &AtomicUsize) {
    let mut left = length;
    while left > 0 {
        stream.reserve_capacity(left.min(1 << 14));
        let Some(Ok(capacity)) = poll_fn(|context| stream.poll_capacity(context)).await else { return };
        stream.send_data(Bytes::from(vec![b'b'; capacity.min(left)]), false).unwrap();
        sent.fetch_add(capacity.min(left), Ordering::SeqCst);
        left -= capacity.min(left);
    }
    stream.send_data(Bytes::new(), true).unwrap();
}

/// Responds with an endless body to `/endless`.
fn respond(request: &Request<Incoming>) -> Response<TestBody> {
    let (ended, _) = mpsc::unbounded_channel();
    Response::new(if request.uri().path() == "/endless" { endless_body(&ended) } else { text_body("ok") })
}

async fn start_http2_server(max_streams: u32) -> TestBackend {
    TestBackend::start_raw(move |stream| async move {
        let service =
            service_fn(|request: Request<Incoming>| async move { Ok::<_, Infallible>(respond(&request)) });
        let mut builder = http2::Builder::new(TokioExecutor::new());
        let builder = builder.max_concurrent_streams(max_streams);
        let _ = builder.serve_connection(TokioIo::new(stream), service).await;
    })
    .await
}

/// A client may send its whole request before it reads the response.
#[tokio::test]
async fn http2_request_is_forwarded_while_the_client_does_not_read() {
    let server = start_full_duplex().await;
    let gateway = AdminGateway::start(&server, "connections: { max-body-size: none }");
    let mut client = connect(gateway.address, 65_535).await;
    let request = Request::post("http://a/").header("content-length", LARGE).body(()).unwrap();
    let (response, mut stream) = client.send_request(request, false).unwrap();
    let sent = AtomicUsize::new(0);
    let uploading = upload(&mut stream, LARGE, &sent);
    timeout(TEST_TIMEOUT, uploading).await.expect("the upload does not end");
    let mut body = timeout(TEST_TIMEOUT, response).await.unwrap().unwrap().into_body();
    let mut received = 0;
    while let Some(data) = timeout(TEST_TIMEOUT, body.data()).await.unwrap() {
        let length = data.unwrap().len();
        received += length;
        body.flow_control().release_capacity(length).unwrap();
    }
    assert_eq!(received, LARGE);
}

/// A client that uses all streams of a server does not stop the others.
#[tokio::test]
async fn streams_beyond_the_limit_of_a_server_use_another_connection() {
    let server = start_http2_server(10).await;
    let gateway = AdminGateway::start_upstream(&[&server], "protocol: http2");
    let client = connect(gateway.address, 65_535).await;
    let stalled = stall(&client, 10).await;
    assert_eq!(gateway.get("/").await.body, "ok");
    // One more may be open: a connection has one stream until the server has sent its limit.
    assert!((2..=3).contains(&server.connection_count()), "{}", server.connection_count());
    drop(stalled);
}

/// The window of a connection to a server is large enough for all its streams.
#[tokio::test]
async fn unread_responses_do_not_use_up_the_window_of_a_server() {
    let server = start_http2_server(1_000).await;
    let gateway = AdminGateway::start_upstream(&[&server], "protocol: http2");
    let clients = [connect(gateway.address, 65_535).await, connect(gateway.address, 65_535).await];
    let mut stalled = Vec::new();
    for client in &clients {
        stalled.extend(stall(client, 100).await);
    }
    // Until the server cannot send.
    let clock = start_clock().await;
    for _ in 0..3 {
        pause(&clock).await;
    }
    assert_eq!(gateway.get("/").await.body, "ok");
    // One more may be open: a connection has one stream until the server has sent its limit.
    assert!((2..=3).contains(&server.connection_count()), "{}", server.connection_count());
}

/// The server grants a window without a bound, and does not read.
#[tokio::test]
async fn uploads_to_http2_server_that_does_not_read_are_bounded() {
    const MAX: usize = 20 << 20;
    let socket = socket_with_small_buffer();
    socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let server = TestBackend::start_on(socket.listen(64).unwrap(), |stream| async move {
        let mut wire = RawClient::new(stream);
        wire.read_exact(24).await;
        let window = 0x7fff_ffff_u32;
        let settings = frame(SETTINGS, 0, 0, &[&[0, 4], &window.to_be_bytes()[..]].concat());
        wire.send([settings, frame(WINDOW_UPDATE, 0, 0, &(window - 65_535).to_be_bytes())].concat()).await;
        pending::<()>().await;
    });
    let gateway = AdminGateway::start_upstream(&[&server], "protocol: http2");
    let (client, clock) = (connect(gateway.address, 65_535).await, start_clock().await);
    let sent = Arc::new(AtomicUsize::new(0));
    let mut uploads = Vec::new();
    for _ in 0..100 {
        let request = Request::post("http://a/").body(()).unwrap();
        let mut client = client.clone().ready().await.unwrap();
        let (response, mut stream) = client.send_request(request, false).unwrap();
        let counter = sent.clone();
        uploads.push(tokio::spawn(async move {
            let _response = response;
            upload(&mut stream, 1 << 20, &counter).await;
        }));
        if uploads.len() == 1 {
            // All streams use the connection of the first one.
            pause(&clock).await;
        }
    }
    let (mut now, mut last) = (sent.load(Ordering::SeqCst), 0);
    while now > last {
        pause(&clock).await;
        (now, last) = (sent.load(Ordering::SeqCst), now);
    }
    assert_eq!(server.connection_count(), 1);
    assert!(now > 1 << 20 && now < MAX, "{} MiB", now >> 20);
    uploads.iter().for_each(tokio::task::JoinHandle::abort);
}

/// A frame takes far longer than `body-timeout`, but its bytes arrive steadily.
#[tokio::test]
async fn slow_http2_reader_above_the_minimum_rate_is_served() {
    let server = TestBackend::start(|request: Request<Incoming>| async move { respond(&request) }).await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 1s }");
    let (client, clock) = (connect(gateway.address, 200).await, start_clock().await);
    let mut body = get(&client, "/endless").await;
    for _ in 0..15 {
        let data = timeout(TEST_TIMEOUT, body.data()).await.unwrap().unwrap().expect("the stream is reset");
        pause(&clock).await;
        body.flow_control().release_capacity(data.len()).unwrap();
    }
}

/// Each pause is shorter than `body-timeout`, but the rate is below the minimum.
#[tokio::test]
async fn http2_reader_below_the_minimum_rate_is_reset() {
    let server = TestBackend::start(|_: Request<Incoming>| async {
        let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
        tokio::spawn(
            async move { while sender.send_data(Bytes::from_static(b"0123456789")).await.is_ok() {} },
        );
        Response::new(body.map_err(|never| match never {}).boxed())
    })
    .await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 1s, min-body-rate: 1kB/s }");
    let (client, clock) = (connect(gateway.address, 20).await, start_clock().await);
    let mut body = get(&client, "/").await;
    for _ in 0..50 {
        match timeout(TEST_TIMEOUT, body.data()).await.unwrap().unwrap() {
            Ok(data) => {
                pause(&clock).await;
                let _ = body.flow_control().release_capacity(data.len());
            }
            Err(_) => return,
        }
    }
    panic!("the stream is not reset");
}

/// The streams take turns, and each waits for the others longer than `body-timeout`.
#[tokio::test]
async fn streams_that_share_a_slow_connection_are_served() {
    const STREAMS: usize = 20;
    const SIZE: usize = 40_000;
    let server =
        TestBackend::start(|_: Request<Incoming>| async { Response::new(text_body(vec![b'a'; SIZE])) }).await;
    let gateway = AdminGateway::start(&server, "connections: { body-timeout: 1s }");
    let (client, clock) = (connect_with(gateway.address, 1 << 20, 65_535).await, start_clock().await);
    // Bytes that the client has read.
    let read = Arc::new(Semaphore::new(0));
    let mut reading = Vec::new();
    for _ in 0..STREAMS {
        let (mut body, read) = (get(&client, "/").await, read.clone());
        reading.push(tokio::spawn(async move {
            let mut received = 0;
            while let Some(data) = body.data().await {
                let length = data.expect("the stream is reset").len();
                received += length;
                read.acquire_many(u32::try_from(length).unwrap()).await.unwrap().forget();
                // Fails after the end of the stream.
                let _ = body.flow_control().release_capacity(length);
            }
            received
        }));
    }
    for reading in reading {
        while !reading.is_finished() {
            pause(&clock).await;
            read.add_permits(1 << 15);
        }
        assert_eq!(reading.await.unwrap(), SIZE);
    }
}

/// Streams that wait for the memory of a connection continue when a part of it is free.
#[tokio::test]
async fn streams_continue_when_others_are_cancelled() {
    const SIZE: usize = 100_000;
    let server = TestBackend::start(|_: Request<Incoming>| async { Response::new(text_body("ok")) }).await;
    let fallback = format!("{{ fallback: {{ body: {} }} }}", "a".repeat(SIZE));
    let rule = format!("name: large, match: {{ path: /endless }}, quota: 1 total, on-limit: {fallback}");
    let gateway = AdminGateway::start(&server, &format!("rules: [{{ {rule} }}]"));
    assert_eq!(gateway.get("/endless").await.body, "ok");
    let (client, clock) = (connect(gateway.address, 8_192).await, start_clock().await);
    // The last of these uses up the 4 MiB.
    let mut stalled = stall(&client, (4 << 20) / SIZE + 1).await;
    pause(&clock).await;
    let mut body = get(&client, "/").await;
    tokio::select! {
        biased;
        () = pause(&clock) => {}
        _ = body.data() => panic!("the connection may buffer more"),
    }
    drop(stalled.drain(..10));
    assert_eq!(timeout(TEST_TIMEOUT, body.data()).await.unwrap().unwrap().unwrap(), "ok");
}
