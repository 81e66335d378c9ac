//! Health checks, failures and connections of upstreams.
//!
//! Defaults that are times are compared as in `overload.rs`: two upstreams with different times, the longer one first.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    harness::{TestBackend, text_body},
    load_balancing::start_named,
    overload::wait_until,
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::Value;
use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};
use tidegate_rule::Rules;

/// A server whose response to `/healthz` the test chooses. Other paths respond 200.
#[derive(Clone, Default)]
struct HealthServer {
    /// The status, or 0 for no response.
    status: Arc<AtomicU64>,
    checks: Arc<AtomicUsize>,
}

impl HealthServer {
    async fn start(status: u64) -> (Self, TestBackend) {
        let health = Self::default();
        health.status.store(status, Ordering::SeqCst);
        let server = health.clone();
        let backend = TestBackend::start(move |request: Request<Incoming>| {
            let server = server.clone();
            async move {
                let mut response = Response::new(text_body("app"));
                if request.uri().path() == "/healthz" {
                    server.checks.fetch_add(1, Ordering::SeqCst);
                    match server.status.load(Ordering::SeqCst) {
                        0 => pending::<()>().await,
                        status => *response.status_mut() = StatusCode::from_u16(status as u16).unwrap(),
                    }
                }
                response
            }
        })
        .await;
        (health, backend)
    }

    fn checks(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

/// Starts a gateway with the upstreams `a` and `b`, each with one server. All requests to `/b` are forwarded to `b`.
fn start_two([a, b]: [(&TestBackend, &str); 2]) -> AdminGateway {
    let upstream = |(server, keys): (&TestBackend, &str)| {
        format!("{{ servers: ['http://{}'], {keys} }}", server.address)
    };
    let policy = format!(
        "{LISTENERS}upstreams:\n  a: {}\n  b: {}\nroutes: [{{ path: /b, upstream: b }}, a]\n",
        upstream(a),
        upstream(b)
    );
    AdminGateway::start_policy(&policy, Rules::new())
}

impl AdminGateway {
    /// A member of the only server of an upstream.
    async fn server(&self, upstream: usize, member: &str) -> Value {
        self.status_at(&format!("/upstreams/{upstream}/servers/0/{member}")).await
    }

    async fn wait_for_health(&self, upstream: usize, health: &str) {
        wait_until(&format!("upstream {upstream} is {health}"), async || {
            self.server(upstream, "health").await == health
        })
        .await;
    }
}

#[tokio::test]
async fn server_is_down_and_up_after_the_declared_number_of_checks() {
    let ((health, server), (other_health, other)) =
        (HealthServer::start(503).await, HealthServer::start(503).await);
    let gateway = start_two([
        (
            &server,
            "health: { path: /healthz, interval: 5ms, unhealthy-threshold: 1, healthy-threshold: 1000 }",
        ),
        (&other, "health: { path: /healthz, interval: 5ms, unhealthy-threshold: 8, healthy-threshold: 1 }"),
    ]);
    wait_until("a failed check of both", async || health.checks() > 0 && other_health.checks() > 0).await;
    gateway.wait_for_health(0, "down").await;
    assert_eq!(gateway.get("/").await.status(), 503);
    gateway.wait_for_health(1, "down").await;
    let failed = gateway.server(1, "failed-checks").await.as_u64();
    assert!(failed >= Some(8), "{failed:?}");

    for health in [&health, &other_health] {
        health.status.store(200, Ordering::SeqCst);
    }
    let checks = health.checks();
    gateway.wait_for_health(1, "healthy").await;
    assert_eq!(gateway.get("/b").await.status(), 200);
    wait_until("more successful checks", async || health.checks() > checks + 5).await;
    assert_eq!(gateway.server(0, "health").await, "down");
    gateway.stop().await;
}

#[tokio::test]
async fn servers_are_checked_once_per_interval() {
    let ((often, server), (rarely, other)) = (HealthServer::start(200).await, HealthServer::start(200).await);
    let gateway = start_two([
        (&server, "health: { path: /healthz, interval: 5ms }"),
        (&other, "health: { path: /healthz, interval: 1h }"),
    ]);
    wait_until("three checks", async || often.checks() >= 3).await;
    assert!(rarely.checks() <= 1);
    gateway.stop().await;
}

#[tokio::test]
async fn check_without_a_response_fails_after_its_timeout() {
    let ((_, server), (_, other)) = (HealthServer::start(0).await, HealthServer::start(0).await);
    let gateway = start_two([
        (&server, "health: { path: /healthz, interval: 5ms, timeout: 20ms, unhealthy-threshold: 3 }"),
        (&other, "health: { path: /healthz, interval: 5ms, timeout: 1h, unhealthy-threshold: 1 }"),
    ]);
    gateway.wait_for_health(0, "down").await;
    assert_eq!(gateway.server(1, "health").await, "healthy");
    gateway.stop().await;
}

#[tokio::test]
async fn failed_server_is_unhealthy_for_the_declared_time() {
    let gone = TestBackend::unreachable().await;
    let gateway = start_two([
        (&gone, "retries: { max: 0 }, max-fails: 1, fail-timeout: 50ms"),
        (&gone, "retries: { max: 0 }, max-fails: 2, fail-timeout: 1h"),
    ]);
    assert_eq!(gateway.get("/b").await.status(), 502);
    assert_eq!(gateway.server(1, "health").await, "healthy", "one failure");
    assert_eq!(gateway.get("/b").await.status(), 502);
    assert_eq!(gateway.server(1, "health").await, "unhealthy", "two failures");
    wait_until("a failure", async || {
        gateway.get("/").await;
        gateway.server(0, "health").await == "unhealthy"
    })
    .await;
    gateway.wait_for_health(0, "healthy").await;
    assert_eq!(gateway.server(1, "health").await, "unhealthy");
    gateway.stop().await;
}

#[tokio::test]
async fn idle_connections_to_servers_are_limited() {
    let (reused, closed) = (start_named("reused").await, start_named("closed").await);
    let gateway = start_two([(&reused, "keep-alive: 4"), (&closed, "keep-alive: 0")]);
    let mut client = gateway.connect().await;
    for path in ["/", "/b"] {
        for _ in 0..3 {
            assert_eq!(client.get(path).await.status(), 200);
        }
    }
    assert_eq!((reused.connection_count(), closed.connection_count()), (1, 3));
    gateway.stop().await;
}
