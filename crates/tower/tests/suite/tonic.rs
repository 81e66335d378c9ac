//! The layer in a real tonic server with a real tonic client.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::test_rules;
use std::{net::SocketAddr, time::Duration};
use tidegate_rule::{
    Gate, RejectionResponse,
    request::{MissingKey, key},
};
use tidegate_tower::LimitLayer;
use tokio::net::TcpListener;
use tonic::{
    Code,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;

async fn serve(layer: LimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    address
}

async fn client(server: SocketAddr) -> HealthClient<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{server}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn overall_health_request() -> HealthCheckRequest {
    HealthCheckRequest { service: String::new() }
}

#[tokio::test]
async fn denied_call_carries_retry_delay() {
    let program = test_rules();
    let server = serve(LimitLayer::new(program.per_peer("checks", "2/min"))).await;
    let (mut one, mut other) = (client(server).await, client(server).await);
    assert!(one.check(overall_health_request()).await.is_ok());
    assert!(other.check(overall_health_request()).await.is_ok());
    for client in [&mut one, &mut other] {
        let status = client.check(overall_health_request()).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "both connections have the same peer address");
        assert!(status.message().contains("checks"), "{}", status.message());
        let retry = status.get_details_retry_info().unwrap();
        assert_eq!(retry.retry_delay, Some(Duration::from_secs(30)));
        let metadata = |name: &str| status.metadata().get(name).unwrap().to_str().unwrap().to_owned();
        assert_eq!(metadata("grpc-retry-pushback-ms"), "30000");
        assert_eq!(metadata("retry-after"), "30");
    }
    program.advance(Duration::from_secs(30));
    assert!(one.check(overall_health_request()).await.is_ok());
}

#[tokio::test]
async fn custom_response_maps_to_grpc_status() {
    let program = test_rules();
    let gate = Gate::from(program.limit("checks", "1/min"))
        .with_rejection(|_, _| RejectionResponse::new(503).text("später, 100 %"));
    let server = serve(LimitLayer::new(gate)).await;
    let mut client = client(server).await;
    assert!(client.check(overall_health_request()).await.is_ok());
    assert_eq!(client.check(overall_health_request()).await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn missing_key_is_invalid_argument() {
    let program = test_rules();
    let limit =
        program.limit("checks", "1/min").key(key::header("x-tenant").unwrap()).missing(MissingKey::Reject);
    let mut client = client(serve(LimitLayer::new(limit)).await).await;
    let status = client.check(overall_health_request()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(status.message(), "the call has no rate limit key");
    assert!(status.get_details_retry_info().is_none());
}
