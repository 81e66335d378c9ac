//! The layer in a real tonic server with a real tonic client.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{TestRules, test_rules};
use std::{net::SocketAddr, time::Duration};
use tidegate_rule::{
    Gate, LimitQueue, RejectionResponse, RequestLimit, RuleConfig,
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

const SECOND: Duration = Duration::from_secs(1);

/// A rule that waits, with the queue of its calls.
fn waiting_limit(program: &TestRules, quota: &str, wait: Duration) -> (RequestLimit, LimitQueue) {
    let queue = LimitQueue::new(usize::MAX, usize::MAX);
    let config = RuleConfig::new("checks").quota(quota).unwrap().wait(wait);
    (program.add_rule(config).queue(queue.clone()), queue)
}

/// Returns when this number of calls wait. The timeout ends only a test that fails.
async fn wait_for_waiters(queue: &LimitQueue, count: usize) {
    let waiting = async {
        while queue.waiter_count() != count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(SECOND * 20, waiting).await.unwrap();
}

fn spawn_check(client: &HealthClient<Channel>) -> tokio::task::JoinHandle<Result<(), tonic::Status>> {
    let mut client = client.clone();
    tokio::spawn(async move { client.check(overall_health_request()).await.map(drop) })
}

#[tokio::test]
async fn queued_calls_are_answered_in_turn_and_too_long_wait_is_exhausted() {
    let program = test_rules();
    let (limit, queue) = waiting_limit(&program, "1/s", SECOND * 2);
    let mut client = client(serve(LimitLayer::new(limit)).await).await;
    assert!(client.check(overall_health_request()).await.is_ok());
    let second = spawn_check(&client);
    wait_for_waiters(&queue, 1).await;
    let third = spawn_check(&client);
    wait_for_waiters(&queue, 2).await;

    // The next call would wait for three seconds.
    let status = client.check(overall_health_request()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND * 3));
    assert_eq!(queue.waiter_count(), 2, "it does not wait");

    program.advance(SECOND);
    second.await.unwrap().unwrap();
    wait_for_waiters(&queue, 1).await;
    assert!(!third.is_finished(), "its token is available a second later");
    program.advance(SECOND);
    third.await.unwrap().unwrap();
    assert_eq!(queue.waiter_count(), 0);
}

#[tokio::test]
async fn dropped_call_leaves_the_queue_and_charges_nothing() {
    let program = test_rules();
    let (limit, queue) = waiting_limit(&program, "1/s", SECOND);
    let mut client = client(serve(LimitLayer::new(limit)).await).await;
    assert!(client.check(overall_health_request()).await.is_ok());
    let dropped = spawn_check(&client);
    wait_for_waiters(&queue, 1).await;
    let status = client.check(overall_health_request()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "the queue slot is taken");
    dropped.abort();
    wait_for_waiters(&queue, 0).await;
    let next = spawn_check(&client);
    wait_for_waiters(&queue, 1).await;
    program.advance(SECOND);
    next.await.unwrap().unwrap();
}

#[tokio::test]
async fn call_waits_until_a_stream_releases_its_slot() {
    let program = test_rules();
    let (limit, queue) = waiting_limit(&program, "1 at once", SECOND);
    let client = client(serve(LimitLayer::new(limit)).await).await;
    let stream = client.clone().watch(overall_health_request()).await.unwrap();
    // A dropped call does not take the slot later.
    let dropped = spawn_check(&client);
    wait_for_waiters(&queue, 1).await;
    dropped.abort();
    wait_for_waiters(&queue, 0).await;
    let (late, next) = (spawn_check(&client), spawn_check(&client));
    wait_for_waiters(&queue, 2).await;
    program.advance(SECOND);
    for call in [late, next] {
        let status = call.await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    }
    let next = spawn_check(&client);
    wait_for_waiters(&queue, 1).await;
    drop(stream);
    next.await.unwrap().unwrap();
}
