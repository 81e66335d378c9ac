//! A decider that says what it is told to, and the service around it.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tidegate_policy::descriptors::Unit;
use tidegate_server::descriptors::{
    Decide, DescriptorFault, DescriptorStatus, DomainAsk, DomainVerdict, OverLimit,
    wire::{GrpcHealth, GrpcTerms, GrpcWire},
};
use tokio::{net::TcpListener, sync::oneshot, task::JoinHandle};
use tokio_rustls::TlsAcceptor;

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

/// A verdict with everything in it.
pub(crate) fn refused() -> DomainVerdict {
    let over = DescriptorStatus {
        over: OverLimit::Yes,
        limit: Some((5, Unit::Week, Some("per user".into()))),
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

/// A service that runs until it is stopped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) health: GrpcHealth,
    stop: oneshot::Sender<()>,
    running: JoinHandle<()>,
}

impl Service {
    pub(crate) async fn start(stub: Stub, tls: Option<TlsAcceptor>, terms: GrpcTerms) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let wire = GrpcWire::new(stub).await;
        let health = wire.health();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(wire.serve(listener, tls, terms, async {
            let _ = stopped.await;
        }));
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
