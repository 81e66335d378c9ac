//! Requests that wait for capacity.

use crate::{
    admin_api::AdminGateway,
    harness::{TestBackend, text_body},
    overload::wait_until,
};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_limiter::Clock;
use tokio::sync::Semaphore;

/// A server that records the header `x-name` of each request, and responds when the test lets it.
#[derive(Clone)]
pub(super) struct HoldingServer {
    names: Arc<Mutex<Vec<String>>>,
    release: Arc<Semaphore>,
}

impl HoldingServer {
    pub(super) async fn start() -> (Self, TestBackend) {
        let holding = Self { names: Arc::default(), release: Arc::new(Semaphore::new(0)) };
        let server = holding.clone();
        let backend = TestBackend::start(move |request: Request<Incoming>| {
            let server = server.clone();
            async move {
                let name = request.headers().get("x-name").map_or("", |name| name.to_str().unwrap());
                server.names.lock().unwrap().push(name.to_owned());
                server.release.acquire().await.unwrap().forget();
                Response::new(text_body("app"))
            }
        })
        .await;
        (holding, backend)
    }

    pub(super) fn release(&self, count: usize) {
        self.release.add_permits(count);
    }

    /// The names of all requests so far.
    fn names(&self) -> Vec<String> {
        self.names.lock().unwrap().clone()
    }

    /// Waits until this many requests have arrived.
    pub(super) async fn wait_for_arrivals(&self, count: usize) {
        wait_until(&format!("{count} requests at the server"), async || self.names().len() >= count).await;
    }
}

impl AdminGateway {
    async fn wait_for_waiting(&self, count: usize) {
        wait_until(&format!("{count} requests wait"), async || {
            self.status_at("/rules/0/queue/waiting").await == count
        })
        .await;
    }
}

#[tokio::test]
async fn full_queue_of_a_key_or_of_all_keys_rejects_requests() {
    let (holding, server) = HoldingServer::start().await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: slots, key: header x-user, quota: 1 at once, wait: 1h, queue: { max: 2, max-total: 3 } }]",
    );
    let (ann, bob) = ("x-user: ann\r\n", "x-user: bob\r\n");
    let mut clients = vec![gateway.send("/", ann).await, gateway.send("/", bob).await];
    holding.wait_for_arrivals(2).await;
    for count in 1..=2 {
        clients.push(gateway.send("/", ann).await);
        gateway.wait_for_waiting(count).await;
    }
    assert_eq!(gateway.status_of("/", ann).await, 503, "two requests of this key wait");
    clients.push(gateway.send("/", bob).await);
    gateway.wait_for_waiting(3).await;
    assert_eq!(gateway.status_of("/", bob).await, 503, "three requests wait");
    holding.release(5);
    for mut client in clients {
        assert_eq!(client.read_response().await.status(), 200);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn waiting_request_with_highest_priority_gets_the_next_slot() {
    let (holding, server) = HoldingServer::start().await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: slots, quota: 1 at once, wait: 1h, priority: { key: header x-name, default: normal }, queue: { max: 9, order: priority } }]",
    );
    let mut clients = vec![gateway.send("/", "x-name: normal\r\n").await];
    holding.wait_for_arrivals(1).await;
    for (count, class) in [(1, "low"), (2, "high"), (3, "critical")] {
        clients.push(gateway.send("/", &format!("x-name: {class}\r\n")).await);
        gateway.wait_for_waiting(count).await;
    }
    holding.release(4);
    for mut client in clients {
        assert_eq!(client.read_response().await.status(), 200);
    }
    assert_eq!(holding.names(), ["normal", "critical", "high", "low"]);
    gateway.stop().await;
}

#[tokio::test]
async fn waiting_request_with_highest_priority_gets_the_next_token_of_a_rate() {
    let (holding, server) = HoldingServer::start().await;
    holding.release(3);
    let (clock, manual_clock) = Clock::manual();
    let gateway = AdminGateway::start_with_clock(
        &server,
        "rules: [{ name: rate, quota: 1/s burst 1, wait: 1h, priority: { key: header x-name, default: normal }, queue: { max: 9, order: priority } }]",
        clock,
    );
    let mut clients = vec![gateway.send("/", "x-name: normal\r\n").await];
    holding.wait_for_arrivals(1).await;
    for (count, class) in [(1, "low"), (2, "critical")] {
        clients.push(gateway.send("/", &format!("x-name: {class}\r\n")).await);
        gateway.wait_for_waiting(count).await;
    }
    for arrivals in 2..=3 {
        manual_clock.advance(Duration::from_secs(1));
        holding.wait_for_arrivals(arrivals).await;
    }
    for mut client in clients {
        assert_eq!(client.read_response().await.status(), 200);
    }
    assert_eq!(holding.names(), ["normal", "critical", "low"]);
    gateway.stop().await;
}

#[tokio::test]
async fn leaky_bucket_queues_requests_without_wait() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "rules: [{ name: rate, quota: 4/h leaky-bucket queue 2 }]");
    assert_eq!(gateway.status_of("/", "").await, 200);
    let first = gateway.send("/", "").await;
    gateway.wait_for_waiting(1).await;
    let second = gateway.send("/", "").await;
    gateway.wait_for_waiting(2).await;
    assert_eq!(gateway.status_of("/", "").await, 429, "two requests wait");
    drop((first, second));
    gateway.wait_for_waiting(0).await;
    gateway.stop().await;
}
