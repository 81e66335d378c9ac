//! Test helpers: rules with a manual clock, and servers on free ports.

#![allow(dead_code, unused_macros, unused_imports, reason = "each test uses a part of it")]

use actix_web::dev::ServerHandle;
use std::{net::SocketAddr, sync::Arc};
use tidegate_limiter::{
    Clock, FailureMode, ManualClock, Store, StoreError,
    store::{self, StoreFuture},
};
use tidegate_rule::{RequestLimit, RuleConfig, Rules, Settings};

/// The rules of a test, and their clock.
pub(crate) struct RuleFixture {
    pub(crate) rules: Rules,
    pub(crate) clock: ManualClock,
}

impl RuleFixture {
    pub(crate) fn new() -> Self {
        let (clock, manual_clock) = Clock::manual();
        let rules = Rules::new();
        rules.apply(Settings::new().clock(clock)).unwrap();
        Self { rules, clock: manual_clock }
    }

    /// Creates rules whose store is unavailable and whose failure mode is closed.
    pub(crate) fn without_store() -> Self {
        let (clock, manual_clock) = Clock::manual();
        let rules = Rules::new();
        let settings =
            Settings::new().clock(clock).store(Arc::new(OfflineStore)).failure_mode(FailureMode::Closed);
        rules.apply(settings).unwrap();
        Self { rules, clock: manual_clock }
    }

    /// Declares a rule without a key.
    pub(crate) fn limit(&self, name: &'static str, quota: &str) -> RequestLimit {
        self.add_rule(RuleConfig::new(name).quota(quota).unwrap())
    }

    pub(crate) fn add_rule(&self, declaration: RuleConfig) -> RequestLimit {
        RequestLimit::new(self.rules.declare(declaration).unwrap())
    }
}

/// A store that is always unavailable.
#[derive(Debug)]
struct OfflineStore;

impl Store for OfflineStore {
    fn execute(&self, _: store::StoreRequest) -> StoreFuture<Result<store::StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("no reply".to_owned())) })
    }
}

/// A running server.
pub(crate) struct TestAppServer {
    pub(crate) address: SocketAddr,
    pub(crate) handle: ServerHandle,
}

impl TestAppServer {
    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) async fn stop(self) {
        self.handle.stop(false).await;
    }
}

/// Runs an application with a number of workers, for HTTP/1.1 and for HTTP/2 with prior knowledge.
macro_rules! serve {
    ($workers:expr, $app:expr) => {{
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let server = actix_web::HttpServer::new($app).workers($workers).disable_signals();
        let server = server.listen_auto_h2c(listener).unwrap().run();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        $crate::support::TestAppServer { address, handle }
    }};
}
pub(crate) use serve;
