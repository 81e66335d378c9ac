//! Generated responses of a server: a client receives the same response, 502, or an aborted one, and never another one.

use super::{MAX_FINDINGS, exchange::within_timeout, exchange_count, grammar::Generator};
use crate::{
    fuzz::messages::{ReadError, ResponseMessage, read_response, read_response_with_hyper},
    harness::{InProcessGateway, TestBackend, test_config, test_upstream},
};
use std::{collections::BTreeMap, net::SocketAddr};
use tidegate_core::Percent;
use tidegate_gateway::{Config, http1::ResponseFraming};
use tidegate_policy::{
    head::is_hop_by_hop,
    model::{ForwardedHeaders, Retries, Upstream},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    runtime::Builder,
};

/// The share of the exchanges of requests.
const SHARE: u64 = 4;
/// A method, and the share of it.
const METHODS: [&str; 4] = ["GET", "GET", "POST", "HEAD"];

/// What the gateway does with a response, according to its parser alone.
#[derive(Debug)]
enum ExpectedResponse {
    Forwarded(ResponseMessage),
    BadGateway,
    /// The head is valid, and the body is not.
    Aborted,
}

#[test]
fn client_gets_the_response_of_the_server_or_502() {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (counts, findings) = runtime.block_on(async {
        let backend = TestBackend::start_raw(serve_generated).await;
        let config = test_config(&[]);
        // A retry would change the number of requests, and a failure must not make the server unavailable.
        let retries = Retries { max: 0, budget: Percent::new(0.0).unwrap() };
        let app = Upstream { retries, max_fails: u64::MAX, ..test_upstream(&[&backend]) };
        let config = Config {
            upstreams: BTreeMap::from([("app".to_owned(), app)]),
            forwarded_headers: ForwardedHeaders::None,
            ..config
        };
        let gateway = InProcessGateway::start_with(config).await;
        let (mut counts, mut findings) = ([0_u64; 3], Vec::new());
        for number in 0..exchange_count() / SHARE {
            match within_timeout(compare(gateway.address, number)).await {
                Ok(kind) => counts[kind] += 1,
                Err(error) => findings.push(error),
            }
        }
        (counts, findings)
    });
    println!("{} forwarded, {} rejected, {} aborted", counts[0], counts[1], counts[2]);
    let first: Vec<_> = findings.iter().take(MAX_FINDINGS).map(String::as_str).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), first.join("\n"));
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
}

/// Responds to `/NUMBER` with the generated response of this number, until one ends with the connection.
async fn serve_generated(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut request = Vec::new();
    loop {
        let Some(end) = memchr::memmem::find(&request, b"\r\n\r\n") else {
            match stream.read_buf(&mut request).await {
                Ok(1..) => continue,
                _ => return,
            }
        };
        let head: Vec<u8> = request.drain(..end + 4).collect();
        let line = String::from_utf8_lossy(&head);
        let Some(number) = line.split([' ', '/']).nth(2).and_then(|number| number.parse().ok()) else {
            return;
        };
        let bytes = Generator::new(number).response();
        if stream.write_all(&bytes).await.is_err() || !is_reusable(&bytes, method(number)) {
            return;
        }
    }
}

fn method(number: u64) -> &'static str {
    METHODS[(number % 4) as usize]
}

/// Whether the server leaves the connection open.
fn is_reusable(bytes: &[u8], method: &str) -> bool {
    read_response(bytes, &[usize::MAX], method)
        .is_ok_and(|(_, framing, _)| framing != ResponseFraming::UntilClose)
}

fn expected_response(bytes: &[u8], method: &str) -> ExpectedResponse {
    match read_response(bytes, &[usize::MAX], method) {
        Ok((_, _, message)) => ExpectedResponse::Forwarded(message),
        Err(ReadError::Body) => ExpectedResponse::Aborted,
        Err(ReadError::Head(_)) => ExpectedResponse::BadGateway,
        // The end of the input within the head, or within the body.
        Err(ReadError::Incomplete) => match memchr::memmem::find(bytes, b"\r\n\r\n") {
            Some(_) => ExpectedResponse::Aborted,
            None => ExpectedResponse::BadGateway,
        },
    }
}

/// Returns the kind of the result.
async fn compare(gateway: SocketAddr, number: u64) -> Result<usize, String> {
    let (method, bytes) = (method(number), Generator::new(number).response());
    let received = request(gateway, method, number).await;
    let by_client = read_response_with_hyper(&received, method).await;
    let expected = expected_response(&bytes, method);
    let is_bad_gateway = by_client.as_ref().is_some_and(|response| response.status == 502);
    let kind = match (&expected, &by_client) {
        (ExpectedResponse::Forwarded(message), Some(response)) if is_same(message, response) => 0,
        // An invalid body, if the client does not have the head yet.
        (ExpectedResponse::BadGateway | ExpectedResponse::Aborted, Some(_)) if is_bad_gateway => 1,
        (ExpectedResponse::Aborted, None) => 2,
        _ => {
            return Err(format!(
                "response {number} to {method}: {}\n  received {}\n  read {by_client:?}\n  expected {expected:?}",
                bytes.escape_ascii(),
                received.escape_ascii()
            ));
        }
    };
    // hyper reads the bytes of the server in the same way.
    if let ExpectedResponse::Forwarded(message) = &expected {
        let by_hyper = read_response_with_hyper(&bytes, method).await;
        if !by_hyper.as_ref().is_some_and(|response| is_same_body(message, response)) {
            return Err(format!(
                "response {number} to {method}: {}\n  hyper {by_hyper:?}\n  gateway {message:?}",
                bytes.escape_ascii()
            ));
        }
    }
    Ok(kind)
}

fn is_same_body(one: &ResponseMessage, other: &ResponseMessage) -> bool {
    one.status == other.status && one.body == other.body && one.trailers == other.trailers
}

/// Whether the client reads the message of the server. Fields that apply to one connection, or that `Connection` may name, are
/// not compared, and no trailer describes the connection or the body.
fn is_same(server: &ResponseMessage, client: &ResponseMessage) -> bool {
    let fields = |message: &ResponseMessage| -> Vec<_> {
        message.fields.iter().filter(|(name, _)| name.starts_with("x-") && name != "x-a").cloned().collect()
    };
    let is_removed = |name: &str| is_hop_by_hop(name.as_bytes()) || name.starts_with("content-");
    let trailers: Vec<_> = server.trailers.iter().filter(|(name, _)| !is_removed(name)).cloned().collect();
    let has_length = client.fields.iter().any(|(name, _)| name == "content-length");
    server.status == client.status
        && server.body == client.body
        && trailers == client.trailers
        && !(client.status == 204 && has_length)
        && fields(server) == fields(client)
}

/// Sends a request, and returns all bytes of the response.
async fn request(gateway: SocketAddr, method: &str, number: u64) -> Vec<u8> {
    let mut received = Vec::new();
    let mut stream = TcpStream::connect(gateway).await.unwrap();
    let _ = stream.set_nodelay(true);
    let head =
        format!("{method} /{number} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // A reset ends the response too.
    while let Ok(1..) = stream.read_buf(&mut received).await {}
    received
}
