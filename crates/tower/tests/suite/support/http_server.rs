//! Servers and clients on loopback.

#![allow(dead_code, reason = "each test uses a part of it")]

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::net::SocketAddr;
use tokio::net::TcpListener;

/// The protocol of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientProtocol {
    Http1,
    Http2,
}

pub(crate) const PROTOCOLS: [ClientProtocol; 2] = [ClientProtocol::Http1, ClientProtocol::Http2];

/// Serves an app on a free port until the test ends.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

/// Returns a client with its own connections.
pub(crate) fn client(speaks: ClientProtocol) -> Client<HttpConnector, Body> {
    Client::builder(TokioExecutor::new()).http2_only(speaks == ClientProtocol::Http2).build_http()
}

/// Sends one request on a new connection.
pub(crate) async fn send(
    speaks: ClientProtocol,
    server: SocketAddr,
    method: Method,
    path: &str,
    headers: &[(&str, &[u8])],
) -> Response<Bytes> {
    let mut request = Request::builder().method(method).uri(format!("http://{server}{path}"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = client(speaks).request(request.body(Body::empty()).unwrap()).await.unwrap();
    let (head, body) = response.into_parts();
    Response::from_parts(head, body.collect().await.unwrap().to_bytes())
}

/// Returns the status of a GET.
pub(crate) async fn status(speaks: ClientProtocol, server: SocketAddr, path: &str) -> u16 {
    send(speaks, server, Method::GET, path, &[]).await.status().as_u16()
}
