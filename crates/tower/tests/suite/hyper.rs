//! The layer in a real hyper server without a framework.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::http_server::{PROTOCOLS, send};
use crate::support::{header, test_rules};
use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use std::{convert::Infallible, future::ready, net::SocketAddr};
use tidegate_rule::request::MissingKey;
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _, service_fn};

/// Whether the server records the peer address.
#[derive(Clone, Copy)]
enum PeerAddress {
    Recorded,
    Missing,
}

async fn serve(layer: LimitLayer, peers: PeerAddress) -> SocketAddr {
    let hello = service_fn(|_: Request<Incoming>| {
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))))
    });
    let service = layer.layer(hello);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = service.clone().map_request(move |mut request: Request<Incoming>| {
                if matches!(peers, PeerAddress::Recorded) {
                    request.extensions_mut().insert(peer);
                }
                request
            });
            tokio::spawn(async move {
                let builder = Builder::new(TokioExecutor::new());
                let _ =
                    builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)).await;
            });
        }
    });
    address
}

#[tokio::test]
async fn hyper_server_limits_by_recorded_peer() {
    for speaks in PROTOCOLS {
        let program = test_rules();
        let server = serve(LimitLayer::new(program.per_peer("bare", "2/min")), PeerAddress::Recorded).await;
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(send(speaks, server, Method::GET, "/", &[]).await.status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 429], "{speaks:?}");
        let rejected = send(speaks, server, Method::GET, "/", &[]).await;
        assert_eq!(header(&rejected, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&rejected, "content-length"), Some(rejected.body().len().to_string().as_str()));
    }
}

/// tower_governor responds with 500 here.
#[tokio::test]
async fn missing_peer_address_uses_configured_behavior() {
    for (missing, expected) in
        [(MissingKey::Shared, [200, 429]), (MissingKey::Skip, [200, 200]), (MissingKey::Reject, [400, 400])]
    {
        let program = test_rules();
        let layer = LimitLayer::new(program.per_peer("bare", "1/min").missing(missing));
        let server = serve(layer, PeerAddress::Missing).await;
        for status in expected {
            let response = send(PROTOCOLS[0], server, Method::GET, "/", &[]).await;
            assert_eq!(response.status().as_u16(), status, "{missing:?}");
        }
    }
}
