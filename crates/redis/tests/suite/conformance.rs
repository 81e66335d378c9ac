//! The conformance kit and the traces of other limiters, run against a real server.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::connect_store;
use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tidegate_core::{AlgorithmKind, CarryOver, ChargeResult, Demand, Micros, Quota, Receipt};
use tidegate_limiter::{
    Store as _,
    store::{
        KeyRef, PermitMode, QuotaSelection, StoreCharge, StoreCheck, StoreLimit, StoreReply, StoreRequest,
    },
};
use tidegate_redis::RedisStore;
use tidegate_testkit::{
    Subject,
    conformance::{self, PermitLifetime},
    servers::RedisServer,
    trace::{self, TraceOp},
};
use tokio::runtime::Runtime;

/// A new key in Redis, at the times of a trace.
struct RedisSubject {
    runtime: Arc<Runtime>,
    store: RedisStore,
    key_ref: KeyRef,
    generation: u64,
}

impl RedisSubject {
    fn execute(&self, request: StoreRequest, now: Micros) -> StoreReply {
        let mut replies = self.runtime.block_on(self.store.execute_at(&[request], now));
        replies.pop().unwrap().unwrap()
    }
}

impl Subject for RedisSubject {
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult {
        let check = StoreCheck {
            key_ref: self.key_ref.clone(),
            demand,
            permit_mode: PermitMode::Acquire,
            receipt: true,
        };
        let StoreReply::Decided(answers) = self.execute(StoreRequest::Decide(vec![check]), now) else {
            panic!("no decision")
        };
        self.generation = answers[0].generation;
        answers[0].results[0]
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        let charge = StoreCharge { receipts: vec![receipt], generation: self.generation };
        self.execute(StoreRequest::Refund { key_ref: self.key_ref.clone(), charge, cost }, now);
    }

    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver) {
        let quota = self.store.effective_quota(quota);
        let limit = StoreLimit::new(self.key_ref.limit.name(), vec![quota], QuotaSelection::All, how);
        self.key_ref.limit = Arc::new(limit);
        // A key is carried over at its next check.
        self.decide(now, Demand::peek(0));
    }

    fn create(&mut self, _now: Micros) {
        panic!("a store does not create limiters")
    }
}

/// Creates keys in one server.
struct SubjectFactory {
    runtime: Arc<Runtime>,
    store: RedisStore,
    next_id: AtomicU64,
}

impl SubjectFactory {
    fn new(server: &RedisServer) -> Self {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let store = runtime.block_on(connect_store(&server.url()));
        Self { runtime, store, next_id: AtomicU64::new(0) }
    }

    fn create_key(&self, quota: Quota) -> RedisSubject {
        let key = self.next_id.fetch_add(1, Ordering::Relaxed).to_string();
        let limit = Arc::new(StoreLimit::new("kit", vec![quota], QuotaSelection::All, CarryOver::Keep));
        let key_ref = KeyRef { limit, key, tier: 0 };
        RedisSubject { runtime: self.runtime.clone(), store: self.store.clone(), key_ref, generation: 0 }
    }
}

#[test]
fn redis_key_conforms() {
    let server = RedisServer::start().unwrap();
    let keys = SubjectFactory::new(&server);
    conformance::check(24, PermitLifetime::Leased, |quota| keys.create_key(quota));
}

/// Runs all traces except those that create a limiter, have permits without a lease, or set the clock back. If a
/// server's clock goes back, a key has fewer tokens than in the trace, never more.
#[test]
fn peer_traces_hold_in_redis() {
    let server = RedisServer::start().unwrap();
    let keys = SubjectFactory::new(&server);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/traces");
    let (mut checked, mut skipped, mut failures) = (0, 0, Vec::new());
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        for text in fs::read_to_string(&path).unwrap().split("\nquota ").skip(1) {
            let text = format!("quota {text}");
            if !is_store_trace(&text) {
                skipped += 1;
                continue;
            }
            checked += 1;
            if let Err(failure) =
                trace::run(&text, |quota| keys.create_key(keys.store.effective_quota(quota)))
            {
                failures.push(format!("{}:\n{text}{failure}", path.display()));
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
    assert!(checked > 95, "{checked} checked, {skipped} not");
}

fn is_store_trace(text: &str) -> bool {
    let mut last = Micros::ZERO;
    trace::parse(text).unwrap().iter().all(|line| match line.op {
        TraceOp::Start(quota) => {
            !matches!(quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_none())
        }
        TraceOp::Create { .. } => false,
        TraceOp::Check { at, .. } | TraceOp::Cancel { at, .. } | TraceOp::Change { at, .. } => {
            last <= at && {
                last = at;
                true
            }
        }
    })
}
