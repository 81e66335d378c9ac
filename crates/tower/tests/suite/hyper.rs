//! A real hyper server without any framework.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::stage::wire::{BOTH, send};
use crate::stage::{header, program};
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
use tidegate_rule::request::Missing;
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;
use tower::{Layer as _, ServiceExt as _, service_fn};

/// Whether a server notes down whom it talks to.
#[derive(Clone, Copy)]
enum Peers {
    Noted,
    Forgotten,
}

async fn serve(layer: LimitLayer, peers: Peers) -> SocketAddr {
    let hello = service_fn(|_: Request<Incoming>| {
        ready(Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("hello"))))
    });
    let service = layer.layer(hello);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, peer)) = listener.accept().await {
            let service = service.clone().map_request(move |mut request: Request<Incoming>| {
                if matches!(peers, Peers::Noted) {
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
async fn a_bare_server_limits_by_the_address_that_it_noted_down() {
    for speaks in BOTH {
        let program = program();
        let server = serve(LimitLayer::new(program.per_peer("bare", "2/min")), Peers::Noted).await;
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(send(speaks, server, Method::GET, "/", &[]).await.status().as_u16());
        }
        assert_eq!(statuses, [200, 200, 429], "{speaks:?}");
        let refused = send(speaks, server, Method::GET, "/", &[]).await;
        assert_eq!(header(&refused, "content-type"), Some("application/problem+json"));
        assert_eq!(header(&refused, "content-length"), Some(refused.body().len().to_string().as_str()));
    }
}

/// tower_governor answers 500 here.
#[tokio::test]
async fn a_server_that_notes_no_address_down_gets_the_answer_that_was_declared() {
    for (missing, expected) in
        [(Missing::Share, [200, 429]), (Missing::Skip, [200, 200]), (Missing::Refuse, [400, 400])]
    {
        let program = program();
        let layer = LimitLayer::new(program.per_peer("bare", "1/min").missing(missing));
        let server = serve(layer, Peers::Forgotten).await;
        for status in expected {
            let response = send(BOTH[0], server, Method::GET, "/", &[]).await;
            assert_eq!(response.status().as_u16(), status, "{missing:?}");
        }
    }
}
