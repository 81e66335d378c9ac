//! Reloads and shutdown while clients with HTTP/1.1 and HTTP/2 send and receive bodies over TLS.

use crate::{
    admin_api::AdminGateway,
    harness::{InProcessGateway, TEST_TIMEOUT, TestBackend, test_config, text_body},
    tls::{connect, tls_settings, write_certificates},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Channel, Full};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    convert::Infallible,
    error::Error,
    net::SocketAddr,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};
use tidegate_gateway::Action;
use tidegate_policy::head::ParsedRequest;
use tidegate_rule::Rules;
use tidegate_testkit::servers::Certificates;
use tokio::{net::TcpStream, time::timeout};

/// More than one frame, and more than the buffers of a stream.
const SIZE: usize = 150_000;

/// A server that responds with the body of the request.
async fn start_mirror() -> TestBackend {
    TestBackend::start(|request: Request<Incoming>| async {
        let body = request.into_body().collect().await.map(http_body_util::Collected::to_bytes);
        Response::new(text_body(body.unwrap_or_default()))
    })
    .await
}

/// A body that differs between requests.
fn numbered_body(number: usize) -> Bytes {
    Bytes::from(format!("{number:08} ").repeat(SIZE / 9))
}

async fn connect_http2(address: SocketAddr, authority: &Path) -> http2::SendRequest<Full<Bytes>> {
    let stream = connect(address, authority, b"h2").await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// What the clients share.
#[derive(Default)]
struct ClientStates {
    is_over: AtomicBool,
    sent: AtomicUsize,
    /// The requests, or groups of requests, that each client has completed.
    completed: [AtomicUsize; 4],
}

impl ClientStates {
    fn completed(&self) -> [usize; 4] {
        self.completed.each_ref().map(|count| count.load(Ordering::SeqCst))
    }
}

/// Sends uploads until the test is over. After the gateway has announced that it closes a connection, the client opens another one.
async fn run_http2_client(
    address: SocketAddr,
    authority: Arc<Path>,
    clients: Arc<ClientStates>,
    index: usize,
) {
    let mut sender = connect_http2(address, &authority).await;
    while !clients.is_over.load(Ordering::SeqCst) {
        // Several requests at once.
        let mut exchanges = Vec::new();
        for _ in 0..4 {
            let body = numbered_body(clients.sent.fetch_add(1, Ordering::SeqCst));
            let mut sender = sender.clone();
            exchanges.push(tokio::spawn(async move {
                let request = Request::post("https://localhost/").body(Full::new(body.clone())).unwrap();
                match timeout(TEST_TIMEOUT, sender.try_send_request(request)).await.unwrap() {
                    Ok(response) => {
                        assert_eq!(response.status(), 200);
                        let received = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap();
                        assert!(received.unwrap().to_bytes() == body, "another body");
                        true
                    }
                    // Only a request that was not sent may fail.
                    Err(mut error) => {
                        let is_unsent = error.take_message().is_some();
                        let error = error.into_error();
                        assert!(is_unsent || is_refused_by_goaway(&error), "{error:?}");
                        false
                    }
                }
            }));
        }
        let mut is_open = true;
        for exchange in exchanges {
            is_open &= exchange.await.unwrap();
        }
        clients.completed[index].fetch_add(1, Ordering::SeqCst);
        if !is_open {
            sender = connect_http2(address, &authority).await;
        }
    }
}

/// Whether the request came after the last one that the gateway processes. The client had not sent it when it received GOAWAY, and
/// does not return it.
fn is_refused_by_goaway(error: &hyper::Error) -> bool {
    let source = error.source().and_then(|source| source.downcast_ref::<h2::Error>());
    source.is_some_and(|error| {
        error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
    })
}

async fn run_http1_client(
    address: SocketAddr,
    authority: Arc<Path>,
    clients: Arc<ClientStates>,
    index: usize,
) {
    while !clients.is_over.load(Ordering::SeqCst) {
        let stream = connect(address, &authority, b"http/1.1").await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let mut is_open = true;
        while is_open && !clients.is_over.load(Ordering::SeqCst) {
            let body = numbered_body(clients.sent.fetch_add(1, Ordering::SeqCst));
            let request =
                Request::post("/").header("host", "localhost").body(Full::new(body.clone())).unwrap();
            let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
            assert_eq!(response.status(), 200);
            is_open = !response.headers().contains_key("connection");
            let received = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
            assert!(received.to_bytes() == body, "another body");
            clients.completed[index].fetch_add(1, Ordering::SeqCst);
        }
    }
}

fn policy(server: &TestBackend, certificates: &Certificates, round: usize) -> String {
    format!(
        "listen: {{ address: 127.0.0.1:0, tls: {{ certificate: '{}', key: '{}' }} }}\nadmin: 127.0.0.1:0\n\
         upstreams: {{ app: http://{} }}\nroutes: app\n\
         rules: [{{ name: all, quota: {}/h }}]\n",
        certificates.certificate.display(),
        certificates.key.display(),
        server.address,
        1_000_000 + round,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_lose_no_request_with_a_body_over_tls() {
    let (_directory, certificates) = write_certificates();
    let servers = [start_mirror().await, start_mirror().await];
    let gateway = AdminGateway::start_policy(&policy(&servers[0], &certificates, 0), Rules::new());
    let states = Arc::new(ClientStates::default());
    let authority: Arc<Path> = certificates.authority.clone().into();
    let mut clients = Vec::new();
    for index in 0..4 {
        let (address, authority, states) = (gateway.address, authority.clone(), states.clone());
        clients.push(match index {
            0 | 1 => tokio::spawn(run_http2_client(address, authority, states, index)),
            _ => tokio::spawn(run_http1_client(address, authority, states, index)),
        });
    }
    for round in 1..=20 {
        let before = states.completed();
        // Every second round changes the server, which replaces the workers.
        gateway.replace_policy(&policy(&servers[round / 2 % 2], &certificates, round)).await;
        // Each client uses its connection again: the gateway closes idle ones when it has replaced the workers several times.
        let requests = async {
            while states.completed().iter().zip(before).any(|(now, before)| *now < before + 2) {
                assert!(!clients.iter().any(tokio::task::JoinHandle::is_finished), "a request was lost");
                tokio::task::yield_now().await;
            }
        };
        timeout(TEST_TIMEOUT, requests).await.unwrap();
    }
    states.is_over.store(true, Ordering::SeqCst);
    for client in clients {
        timeout(TEST_TIMEOUT, client).await.unwrap().unwrap();
    }
    assert!(servers.iter().all(|server| server.connection_count() > 0));
    gateway.stop().await;
}

/// Requests whose bodies are incomplete when the shutdown starts.
#[tokio::test]
async fn shutdown_completes_uploads_over_tls() {
    const STREAMS: usize = 10;
    let (_directory, certificates) = write_certificates();
    let server = start_mirror().await;
    let config = test_config(&[&server]);
    let app = config.upstream_id("app").unwrap();
    let mut gateway = InProcessGateway::start_with_tls(
        config,
        Some(tls_settings(&certificates)),
        move |_: &ParsedRequest| Action::Forward(app),
    )
    .await;
    let authority = &certificates.authority;
    let stream = connect(gateway.address, authority, b"h2").await.unwrap();
    let (sender, connection) =
        http2::handshake::<_, _, Channel<Bytes, Infallible>>(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
    let connection = tokio::spawn(connection);
    let (mut uploads, mut responses) = (Vec::new(), Vec::new());
    for number in 0..STREAMS {
        let (mut upload, body) = Channel::<Bytes, Infallible>::new(1);
        let request = Request::post("https://localhost/").body(body).unwrap();
        responses.push(tokio::spawn(sender.clone().send_request(request)));
        upload.send_data(numbered_body(number)).await.unwrap();
        uploads.push(upload);
    }
    let stream = connect(gateway.address, authority, b"http/1.1").await.unwrap();
    let (mut http1_sender, http1_connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(http1_connection);
    let (mut upload, body) = Channel::<Bytes, Infallible>::new(1);
    let request = Request::post("/").header("host", "localhost").body(body).unwrap();
    let http1_response = tokio::spawn(async move { http1_sender.send_request(request).await });
    upload.send_data(numbered_body(STREAMS)).await.unwrap();
    uploads.push(upload);
    // All requests are in flight.
    let in_flight = async {
        while server.connection_count() <= STREAMS {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, in_flight).await.unwrap();

    gateway.stop();
    let closed = async { while TcpStream::connect(gateway.address).await.is_ok() {} };
    timeout(TEST_TIMEOUT, closed).await.unwrap();
    for (number, mut upload) in uploads.into_iter().enumerate() {
        upload.send_data(numbered_body(number)).await.unwrap();
    }
    responses.push(http1_response);
    for (number, response) in responses.into_iter().enumerate() {
        let response = timeout(TEST_TIMEOUT, response).await.unwrap().unwrap().unwrap();
        assert_eq!(response.status(), 200);
        let is_http1 = number == STREAMS;
        assert_eq!(response.headers().get("connection").is_some(), is_http1, "{response:?}");
        let body = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap().to_bytes();
        assert!(body == [numbered_body(number), numbered_body(number)].concat(), "another body");
    }
    // The gateway closes the connection.
    timeout(TEST_TIMEOUT, connection).await.unwrap().unwrap().unwrap();
    gateway.wait_stopped().await;
}
