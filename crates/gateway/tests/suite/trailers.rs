//! Trailers in HTTP/2.

use crate::harness::{InProcessGateway, RawClient, TEST_TIMEOUT, TestBackend, TestBody, test_config};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Channel};
use hyper::{body::Incoming, client::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use tidegate_policy::model::Protocol;
use tokio::{net::TcpStream, time::timeout};

fn checksum_trailers(sum: &HeaderValue) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), sum.clone())])
}

/// A body of unknown length with trailers.
fn body_with_trailers(text: &'static str, sum: HeaderValue) -> TestBody {
    let (mut sender, body) = Channel::<Bytes, Infallible>::new(2);
    tokio::spawn(async move {
        let _ = sender.send_data(Bytes::from_static(text.as_bytes())).await;
        let _ = sender.send_trailers(checksum_trailers(&sum)).await;
    });
    body.map_err(|never| match never {}).boxed()
}

/// Responds with the trailers of the request.
async fn echo_trailers(request: Request<Incoming>) -> Result<Response<TestBody>, Infallible> {
    let received = request.into_body().collect().await.unwrap();
    let sum = received.trailers().and_then(|trailers| trailers.get("x-sum")).cloned();
    let mut response =
        Response::new(body_with_trailers("body", sum.unwrap_or(HeaderValue::from_static("none"))));
    response.headers_mut().insert("trailer", HeaderValue::from_static("x-sum"));
    Ok(response)
}

async fn request_with_trailers(gateway: &InProcessGateway) -> (Bytes, Option<HeaderMap>) {
    let stream = TcpStream::connect(gateway.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post("http://a/")
        .header("te", "trailers")
        .header("trailer", "x-sum")
        .body(body_with_trailers("abc", HeaderValue::from_static("6")))
        .unwrap();
    let response = timeout(TEST_TIMEOUT, sender.send_request(request)).await.unwrap().unwrap();
    let received = timeout(TEST_TIMEOUT, response.into_body().collect()).await.unwrap().unwrap();
    let trailers = received.trailers().cloned();
    (received.to_bytes(), trailers)
}

#[tokio::test]
async fn trailers_are_forwarded_from_http2_to_http2() {
    let server = TestBackend::start_raw(|stream| async move {
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        let _ = builder.serve_connection(TokioIo::new(stream), service_fn(echo_trailers)).await;
    })
    .await;
    let mut config = test_config(&[&server]);
    config.upstreams.get_mut("app").unwrap().protocol = Protocol::Http2;
    let gateway = InProcessGateway::start_with(config).await;
    let (body, received) = request_with_trailers(&gateway).await;
    assert_eq!(body, "body");
    assert_eq!(received, Some(checksum_trailers(&HeaderValue::from_static("6"))));
}

#[tokio::test]
async fn trailers_are_forwarded_from_http2_to_http1() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = RawClient::new(stream);
        let head = wire.read_head().await;
        assert!(head.contains("te: trailers\r\n") && head.contains("trailer: x-sum\r\n"), "{head}");
        wire.read_until(b"3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n").await;
        wire.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n4\r\nbody\r\n0\r\nx-sum: 7\r\n\r\n")
            .await;
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let (body, received) = request_with_trailers(&gateway).await;
    assert_eq!(body, "body");
    assert_eq!(received, Some(checksum_trailers(&HeaderValue::from_static("7"))));
}
