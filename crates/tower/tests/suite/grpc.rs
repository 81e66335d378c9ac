//! tonic: the interceptor, and guards for servers and channels.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidegate_limiter::Clock;
use tidegate_overload::{Breaker, BreakerSettings, BreakerState};
use tidegate_rule::{
    Gate, RejectionResponse, RequestLimit, Rule, RuleConfig, RuleSettings, Rules, Settings,
    request::{MissingKey, RequestHead, RequestKey, key},
};
use tidegate_tower::{GuardLayer, RequestGuard, RuleInterceptor};
use tokio::net::TcpListener;
use tonic::{
    Code, Request,
    service::interceptor::InterceptedService,
    transport::{Channel, Endpoint, Server, server::TcpIncoming},
};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_types::StatusExt as _;
use tower::Layer as _;

const SECOND: Duration = Duration::from_secs(1);

fn rule(quota: &str) -> Rule {
    let rules = Rules::new();
    rules.apply(Settings::new().clock(Clock::manual().0)).unwrap();
    rules.declare(RuleConfig::new("health").quota(quota).unwrap()).unwrap()
}

async fn listen() -> (TcpIncoming, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (TcpIncoming::from(listener), address)
}

fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy()
}

async fn serve_with_interceptor(rule: Rule, key: RequestKey) -> SocketAddr {
    serve_with_gate(RequestLimit::new(rule).key(key)).await
}

async fn serve_with_gate(gate: impl Into<Gate>) -> SocketAddr {
    let (incoming, address) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let service = InterceptedService::new(health, RuleInterceptor::new(gate).unwrap());
    tokio::spawn(Server::builder().add_service(service).serve_with_incoming(incoming));
    address
}

fn health_request(user: Option<&'static str>) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest::default());
    if let Some(user) = user {
        request.metadata_mut().insert("x-user", user.parse().unwrap());
    }
    request
}

#[tokio::test]
async fn interceptor_denies_with_retry_info() {
    let address = serve_with_interceptor(rule("2/min"), key::peer()).await;
    let mut client = HealthClient::new(channel(address));
    for _ in 0..2 {
        client.check(health_request(None)).await.unwrap();
    }
    let status = client.check(health_request(None)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND * 30));
    let mut other = HealthClient::new(channel(address));
    assert!(other.check(health_request(None)).await.is_err(), "another connection of the same client");
}

#[tokio::test]
async fn interceptor_keys_by_metadata() {
    let address = serve_with_interceptor(rule("1/min"), key::header("x-user").unwrap()).await;
    let mut client = HealthClient::new(channel(address));
    for user in [Some("alice"), Some("bob"), None] {
        client.check(health_request(user)).await.unwrap();
        let status = client.check(health_request(user)).await.unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{user:?}");
    }
}

/// Several rules, a cost, a custom rejection and a missing key.
#[tokio::test]
async fn interceptor_checks_all_rules_of_gate() {
    let program = crate::support::test_rules();
    let user = || key::header("x-user").unwrap();
    let all = program.limit("all", "5/min").cost(|head: &dyn RequestHead| match head.header("x-user") {
        Some(b"bob") => 2,
        _ => 1,
    });
    let gate =
        Gate::new([all.clone(), program.limit("each", "2/min").key(user()).missing(MissingKey::Reject)]);
    let mut client = HealthClient::new(channel(serve_with_gate(gate).await));
    let status = client.check(health_request(None)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(crate::support::quota_remaining(&all), 5, "all rules are charged or none");
    let cases =
        [("alice", Ok(())), ("alice", Ok(())), ("alice", Err("each")), ("bob", Ok(())), ("eve", Ok(()))];
    for (user, expected) in cases.into_iter().chain([("eve", Err("all"))]) {
        match (client.check(health_request(Some(user))).await, expected) {
            (Ok(_), Ok(())) => {}
            (Err(status), Err(rule)) => {
                assert_eq!(status.code(), Code::ResourceExhausted);
                assert!(status.message().starts_with(&format!("{rule}: limit of")), "{status:?}");
                assert!(status.get_details_retry_info().is_some());
                assert!(status.metadata().get("ratelimit").is_some());
            }
            (answer, expected) => panic!("{user}: {answer:?} instead of {expected:?}"),
        }
    }

    let moved =
        Gate::from(program.limit("moved", "1/min")).with_rejection(|_, _| RejectionResponse::new(503));
    let mut client = HealthClient::new(channel(serve_with_gate(moved).await));
    client.check(health_request(None)).await.unwrap();
    assert_eq!(client.check(health_request(None)).await.unwrap_err().code(), Code::Unavailable);
}

#[test]
fn interceptor_rejects_blocking_rules() {
    let program = crate::support::test_rules();
    let waits = program.add_rule(RuleConfig::new("waits").quota("5/min").unwrap().wait(SECOND));
    let error = RuleInterceptor::new(Gate::new([program.limit("calls", "5/min"), waits])).unwrap_err();
    assert!(error.to_string().contains("rule `waits` waits"), "{error}");
    assert!(error.to_string().contains("use `LimitLayer`"), "{error}");
    let stored = crate::support::test_rules_without_store().limit("stored", "5/min");
    let error = RuleInterceptor::new(stored).unwrap_err();
    assert!(error.to_string().contains("rule `stored` uses a store"), "{error}");
}

/// Later settings let a rule wait. The clock does not advance, so a call that waits would never end.
#[tokio::test]
async fn interceptor_decides_without_waiting() {
    let program = crate::support::test_rules();
    let limit = program.limit("calls", "2/min");
    let mut client = HealthClient::new(channel(serve_with_gate(limit).await));
    let waits = RuleSettings::new().wait(SECOND * 3_600);
    program.rules.apply(Settings::new().rule("calls", waits)).unwrap();
    for _ in 0..2 {
        client.check(health_request(None)).await.unwrap();
    }
    let status = client.check(health_request(None)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND * 30));
}

#[tokio::test]
async fn interceptor_whose_rule_moved_to_a_store_is_unavailable_and_reported_once() {
    let log = crate::support::log::capture();
    let program = crate::support::test_rules();
    let limit = program.limit("calls", "5/min");
    let mut client = HealthClient::new(channel(serve_with_gate(limit).await));
    client.check(health_request(None)).await.unwrap();
    program.rules.apply(Settings::new().store(Arc::new(crate::support::NoReplyStore))).unwrap();
    for _ in 0..3 {
        let status = client.check(health_request(None)).await.unwrap_err();
        assert_eq!(
            (status.code(), status.message()),
            (Code::Unavailable, "the server cannot take this call now")
        );
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND));
    }
    let reported = log.lines().into_iter().filter(|line| line.contains("cannot use a store"));
    assert_eq!(reported.count(), 1);
}

#[tokio::test]
async fn client_interceptor_denies_before_sending() {
    let interceptor = RuleInterceptor::new(RequestLimit::new(rule("1/min"))).unwrap();
    let closed = listen().await.1;
    let mut client = HealthClient::with_interceptor(channel(closed), interceptor);
    assert_eq!(client.check(health_request(None)).await.unwrap_err().code(), Code::Unavailable);
    assert_eq!(client.check(health_request(None)).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn server_guard_returns_grpc_status() {
    let settings = BreakerSettings::builder().count_window(10).build().unwrap();
    let breaker = Arc::new(Breaker::with_clock(settings, Clock::manual().0));
    let (incoming, address) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(GuardLayer::new(breaker.clone())).add_service(health);
    tokio::spawn(server.serve_with_incoming(incoming));

    let mut client = HealthClient::new(channel(address));
    client.check(health_request(None)).await.unwrap();
    breaker.open_for(SECOND * 9);
    let status = client.check(health_request(None)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(SECOND * 9));
}

/// A status in the trailers, and an unknown service, which is an error of the client.
#[tokio::test]
async fn channel_guard_counts_statuses() {
    let settings = BreakerSettings::builder().count_window(2).min_calls(2).build().unwrap();
    let breaker = Arc::new(Breaker::with_clock(settings, Clock::manual().0));
    let (incoming, address) = listen().await;
    let (_reporter, health) = tonic_health::server::health_reporter();
    let server = tokio::spawn(Server::builder().add_service(health).serve_with_incoming(incoming));

    let guarded =
        GuardLayer::new(RequestGuard::new(breaker.clone()).for_client_calls()).layer(channel(address));
    let mut client = HealthClient::new(guarded);
    client.check(health_request(None)).await.unwrap();
    let unknown = Request::new(HealthCheckRequest { service: "unknown".to_owned() });
    assert_eq!(client.check(unknown).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(breaker.state(), BreakerState::Closed);

    server.abort();
    let closed = listen().await.1;
    let mut client = HealthClient::new(
        GuardLayer::new(RequestGuard::new(breaker.clone()).for_client_calls()).layer(channel(closed)),
    );
    while breaker.state() == BreakerState::Closed {
        assert_eq!(client.check(health_request(None)).await.unwrap_err().code(), Code::Unavailable);
    }
    let status = client.check(health_request(None)).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.get_details_retry_info().is_some(), "rejected by the breaker: {status:?}");
}
