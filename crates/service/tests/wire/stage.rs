//! A decider that says what it is told to, and the service around it.

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
    Decide, DescriptorFault, DescriptorService, DescriptorStatus, DomainAsk, DomainVerdict, OverLimit,
    ServiceSettings,
    wire::{GrpcHealth, GrpcSettings, GrpcWire},
};
use tokio::{sync::oneshot, task::JoinHandle};

/// Says what it is told to, in turn, and OK from then on.
#[derive(Clone, Default)]
pub(crate) struct Stub {
    asked: Arc<Mutex<Vec<DomainAsk>>>,
    says: Arc<Mutex<VecDeque<Result<DomainVerdict, DescriptorFault>>>>,
}

impl Stub {
    pub(crate) fn says(&self, next: Result<DomainVerdict, DescriptorFault>) {
        self.says.lock().unwrap().push_back(next);
    }

    pub(crate) fn asked(&self) -> Vec<DomainAsk> {
        self.asked.lock().unwrap().drain(..).collect()
    }
}

impl Decide for Stub {
    async fn decide(&self, ask: DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        let status = DescriptorStatus { over: OverLimit::No, limit: None, remaining: 0, reset: None };
        let fine = DomainVerdict {
            overall: OverLimit::No,
            statuses: vec![status; ask.descriptors.len()],
            headers: Vec::new(),
            body: None,
            metadata: None,
        };
        self.asked.lock().unwrap().push(ask);
        self.says.lock().unwrap().pop_front().unwrap_or(Ok(fine))
    }
}

/// One entry.
pub(crate) fn entry(key: &str, value: &str) -> RateLimitDescriptor {
    let entry = Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

/// A verdict with everything in it.
pub(crate) fn refused() -> DomainVerdict {
    let over = DescriptorStatus {
        over: OverLimit::Yes,
        limit: Some((5, CalendarUnit::Week, Some("per user".into()))),
        remaining: 0,
        reset: Some(std::time::Duration::from_millis(1_500)),
    };
    let unlimited = DescriptorStatus { over: OverLimit::No, limit: None, remaining: u32::MAX, reset: None };
    DomainVerdict {
        overall: OverLimit::Yes,
        statuses: vec![over, unlimited],
        headers: vec![("RateLimit-Limit".to_owned(), "5".to_owned())],
        body: Some("too many".to_owned()),
        metadata: Some(serde_json::json!({ "domain": "shop", "list": [1.5, true, null, { "a": "b" }] })),
    }
}

/// Who decides in earnest: by one limit for each `user` of the domain `shop`.
pub(crate) fn limits() -> Arc<DescriptorService> {
    let text =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, requests_per_unit: 2 }\n";
    let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
    let service = DescriptorService::new(ServiceSettings::default()).unwrap();
    service.load(Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap()));
    service.into()
}

/// A service that runs until it is stopped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) health: GrpcHealth,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Service {
    pub(crate) async fn start<D: Decide>(decide: D, tls: Option<Tls>, settings: GrpcSettings) -> Self {
        let listener = ListenerSpec { name: None, address: ([127, 0, 0, 1], 0).into(), tls };
        let listener = BoundListener::bind(&listener).unwrap();
        let address = listener.address();
        let wire = GrpcWire::new(decide).await;
        let health = wire.health();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(async move {
            let stop = async { drop(stopped.await) };
            wire.serve(listener, settings, stop).await.unwrap();
        });
        Self { address, health, stop, running }
    }

    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns once all of its connections have ended.
    pub(crate) async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap();
    }
}
