//! Costs over HTTP/2, from the client to the gateway and from the gateway to the server.

use super::{ESTIMATE, USAGE};
use crate::{
    admin_api::{AdminGateway, metric_value},
    harness::{TEST_TIMEOUT, TestBackend, TestBody, text_body},
};
use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::{body::Incoming, client::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use tidegate_rule::Rules;
use tokio::{net::TcpStream, time::timeout};

const EVENT: &str = "data: {\"usage\": {\"input_tokens\": 5, \"output_tokens\": 6}}\n\n";

/// A server with HTTP/2 that responds with what the path names.
async fn start_http2_server() -> TestBackend {
    TestBackend::start_raw(|stream| async move {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service_fn(respond)).await;
    })
    .await
}

async fn respond(request: Request<Incoming>) -> Result<Response<TestBody>, Infallible> {
    let path = request.uri().path().to_owned();
    let received = request.into_body().collect().await.unwrap().to_bytes();
    let (kind, body) = match path.as_str() {
        "/usage" => ("application/json", text_body(USAGE)),
        "/echo" => ("application/json", text_body(received)),
        "/stream" => ("text/event-stream", streamed_body(StreamEnd::Last)),
        "/endless" => ("text/event-stream", streamed_body(StreamEnd::Never)),
        "/trailer" => ("text/plain", streamed_body(StreamEnd::Trailer)),
        other => panic!("no response for {other}"),
    };
    let mut response = Response::new(body);
    response.headers_mut().insert("content-type", kind.parse().unwrap());
    Ok(response)
}

enum StreamEnd {
    /// After the event.
    Last,
    /// With the trailer `x-cost`.
    Trailer,
    /// When the gateway resets the stream.
    Never,
}

/// A body with an event that states a cost, and this end.
fn streamed_body(end: StreamEnd) -> TestBody {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(1);
    tokio::spawn(async move {
        sender.send_data(EVENT.into()).await.unwrap();
        match end {
            StreamEnd::Last => {}
            StreamEnd::Trailer => {
                let trailers = HeaderMap::from_iter([(http::HeaderName::from_static("x-cost"), 4.into())]);
                let _ = sender.send_trailers(trailers).await;
            }
            StreamEnd::Never => {
                while sender.send_data("data: {}\n\n".into()).await.is_ok() {
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    body.map_err(|never| match never {}).boxed()
}

fn start_gateway(server: &TestBackend, settle: &str) -> AdminGateway {
    let policy = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nroutes: app\n\
         upstreams: {{ app: {{ servers: 'http://{}', protocol: http2 }} }}\n\
         rules: [{{ name: tokens, key: header x-user, quota: 100 per 1000h,\n\
         \x20 cost: {{ from: body /max_tokens, default: {ESTIMATE}, max: 100 }}, settle: {settle} }}]",
        server.address
    );
    AdminGateway::start_policy(&policy, Rules::new())
}

/// A connection with HTTP/2.
async fn connect(gateway: &AdminGateway) -> http2::SendRequest<TestBody> {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}

/// Sends a body. Returns the remaining tokens, and the response.
async fn post(
    client: &mut http2::SendRequest<TestBody>,
    path: &str,
    body: &'static str,
) -> (u64, Response<Incoming>) {
    let request = Request::post(format!("http://a{path}")).header("x-user", "ann").header("te", "trailers");
    let request = request.body(text_body(body)).unwrap();
    let response = timeout(TEST_TIMEOUT, client.send_request(request)).await.unwrap().unwrap();
    let header = response.headers()["ratelimit"].to_str().unwrap();
    let remaining = header.split("r=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap();
    (remaining, response)
}

/// Waits until this number of requests is settled in this way.
async fn wait_settled(gateway: &AdminGateway, result: &str, count: f64) {
    let series = format!("tidegate_settled_requests_total{{rule=\"tokens\",result=\"{result}\"}}");
    let settled = async { while metric_value(&gateway.metrics().await, &series) < count {} };
    timeout(TEST_TIMEOUT, settled).await.unwrap();
}

#[tokio::test]
async fn costs_are_reserved_and_settled() {
    let server = start_http2_server().await;
    for (settle, path, tokens, expected) in [
        ("body /usage/total_tokens", "/usage", 7, USAGE),
        ("openai", "/stream", 11, EVENT),
        ("trailer x-cost", "/trailer", 4, EVENT),
        // The server receives the body that the rule has read.
        ("body /max_tokens", "/echo", 20, "{\"max_tokens\": 20}"),
    ] {
        let gateway = start_gateway(&server, settle);
        let mut client = connect(&gateway).await;
        let (remaining, response) = post(&mut client, path, "{\"max_tokens\": 20}").await;
        assert_eq!(remaining, 80, "{path}");
        let received = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
        assert_eq!(received.trailers().is_some(), path == "/trailer", "{path}");
        assert_eq!(received.to_bytes(), expected, "{path}");
        wait_settled(&gateway, "stated", 1.0).await;
        assert_eq!(post(&mut client, path, "no JSON").await.0, 100 - tokens - ESTIMATE, "{path}");
        gateway.stop().await;
    }
}

/// A client that resets its stream is charged what the response had stated, and other streams continue.
#[tokio::test]
async fn reset_stream_is_charged_what_was_stated() {
    let server = start_http2_server().await;
    let gateway = start_gateway(&server, "anthropic");
    let mut client = connect(&gateway).await;
    let (_, response) = post(&mut client, "/endless", "{\"max_tokens\": 30}").await;
    let mut body = response.into_body();
    let first = timeout(TEST_TIMEOUT, body.frame()).await.unwrap().unwrap().unwrap();
    assert!(first.data_ref().unwrap().starts_with(EVENT.as_bytes()));
    drop(body);
    wait_settled(&gateway, "aborted", 1.0).await;
    assert_eq!(post(&mut client, "/usage", "{}").await.0, 100 - 11 - ESTIMATE);
    gateway.stop().await;
}
