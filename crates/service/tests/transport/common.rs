//! A stub decider with scripted results, and servers for tests.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tidegate_http_server::BoundListener;
use tidegate_policy::{
    descriptors::{CalendarUnit, DescriptorFile, DescriptorSet, DomainMerge},
    model::{ListenerSpec, Tls},
};
use tidegate_proto::rls::{Entry, RateLimitDescriptor};
use tidegate_service::descriptors::{
    Decide, DecisionError, DescriptorService, DomainRequest, DomainVerdict, LimitCode, LimitStatus,
    ServiceSettings,
    transport::{GrpcHealth, GrpcServer, GrpcSettings},
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Returns scripted results in order, then OK.
#[derive(Clone, Default)]
pub(crate) struct StubDecider {
    requests: Arc<Mutex<Vec<DomainRequest>>>,
    results: Arc<Mutex<VecDeque<Result<DomainVerdict, DecisionError>>>>,
}

impl StubDecider {
    pub(crate) fn push_result(&self, next: Result<DomainVerdict, DecisionError>) {
        self.results.lock().unwrap().push_back(next);
    }

    pub(crate) fn take_requests(&self) -> Vec<DomainRequest> {
        self.requests.lock().unwrap().drain(..).collect()
    }
}

impl Decide for StubDecider {
    async fn decide(&self, request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        let status = LimitStatus { code: LimitCode::Ok, limit: None, remaining: 0, reset: None };
        let fine = DomainVerdict {
            overall_code: LimitCode::Ok,
            statuses: vec![status; request.descriptors.len()],
            headers: Vec::new(),
            body: None,
            metadata: None,
        };
        self.requests.lock().unwrap().push(request);
        self.results.lock().unwrap().pop_front().unwrap_or(Ok(fine))
    }
}

/// A descriptor with one entry.
pub(crate) fn descriptor_of(key: &str, value: &str) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

/// A verdict with all fields set.
pub(crate) fn denied_verdict() -> DomainVerdict {
    let over = LimitStatus {
        code: LimitCode::OverLimit,
        limit: Some((5, CalendarUnit::Week, Some("per user".into()))),
        remaining: 0,
        reset: Some(std::time::Duration::from_millis(1_500)),
    };
    let unlimited = LimitStatus { code: LimitCode::Ok, limit: None, remaining: u32::MAX, reset: None };
    DomainVerdict {
        overall_code: LimitCode::OverLimit,
        statuses: vec![over, unlimited],
        headers: vec![("RateLimit-Limit".to_owned(), "5".to_owned())],
        body: Some("too many".to_owned()),
        metadata: Some(serde_json::json!({ "domain": "shop", "list": [1.5, true, null, { "a": "b" }] })),
    }
}

/// A real service with one limit per `user` of the domain `shop`.
pub(crate) fn limited_service() -> Arc<DescriptorService> {
    let text =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, requests_per_unit: 2 }\n";
    let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
    let service = DescriptorService::new(ServiceSettings::default()).unwrap();
    service.load(Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap()));
    service.into()
}

/// A gRPC server that runs until it is stopped.
pub(crate) struct TestGrpcServer {
    pub(crate) address: SocketAddr,
    pub(crate) health: GrpcHealth,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl TestGrpcServer {
    pub(crate) async fn start<D: Decide>(decider: D, tls: Option<Tls>, settings: GrpcSettings) -> Self {
        let listener = ListenerSpec { name: None, address: ([127, 0, 0, 1], 0).into(), tls };
        let listener = BoundListener::bind(&listener).unwrap();
        let address = listener.address();
        let server = GrpcServer::new(decider).await;
        let health = server.health();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            server.serve(listener, settings, stop).await.unwrap();
        });
        Self { address, health, stop, running }
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Stops the server and waits until all connections are closed.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap();
    }
}
