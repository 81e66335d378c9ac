//! Rules with a manual clock.

use http::Request;
use std::{net::SocketAddr, sync::Arc, time::Duration};
use tidegate_limiter::{
    Clock, FailureMode, ManualClock, Store, StoreError,
    store::{self, StoreFuture},
};
use tidegate_rule::{RequestLimit, RuleConfig, Rules, Settings, request::key};

/// The rules of a test, and their clock.
pub struct TestRules {
    pub rules: Rules,
    pub clock: ManualClock,
}

/// A store that is always unavailable.
#[derive(Debug)]
pub struct NoReplyStore;

impl Store for NoReplyStore {
    fn execute(&self, _: store::StoreRequest) -> StoreFuture<Result<store::StoreReply, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("no reply".to_owned())) })
    }
}

/// Returns rules whose store is unavailable and whose failure mode is closed.
pub fn test_rules_without_store() -> TestRules {
    let (clock, manual_clock) = Clock::manual();
    let rules = Rules::new();
    let settings =
        Settings::new().clock(clock).store(Arc::new(NoReplyStore)).failure_mode(FailureMode::Closed);
    rules.apply(settings).unwrap();
    TestRules { rules, clock: manual_clock }
}

pub fn test_rules() -> TestRules {
    let (clock, manual_clock) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock)).unwrap();
    TestRules { rules, clock: manual_clock }
}

impl TestRules {
    /// Declares a rule without a key.
    pub fn limit(&self, name: &'static str, quota: &str) -> RequestLimit {
        self.add_rule(RuleConfig::new(name).quota(quota).unwrap())
    }

    /// Declares a rule by peer address.
    pub fn per_peer(&self, name: &'static str, quota: &str) -> RequestLimit {
        self.limit(name, quota).key(key::peer())
    }

    pub fn add_rule(&self, declaration: RuleConfig) -> RequestLimit {
        RequestLimit::new(self.rules.declare(declaration).unwrap())
    }

    pub fn advance(&self, time: Duration) {
        self.clock.advance(time);
    }
}

/// Returns the remaining quota of a rule without a key.
pub fn quota_remaining(limit: &RequestLimit) -> u64 {
    let limiter = limit.rule().limiter().unwrap();
    limiter.blocking().key("").peek(0).remaining()
}

/// Returns a request to a path.
pub fn get(path: &str) -> Request<()> {
    Request::builder().uri(path).body(()).unwrap()
}

/// Returns a request to a path from an address.
pub fn get_from(path: &str, peer: [u8; 4]) -> Request<()> {
    let mut request = get(path);
    request.extensions_mut().insert(SocketAddr::from((peer, 4_000)));
    request
}
