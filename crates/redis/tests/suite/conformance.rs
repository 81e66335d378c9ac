//! The store conformance kit on a real server: the laws that hold in memory, and the stories of all peers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::store;
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
        KeyRef, QuotaSelection, SlotMode, StoreCharge, StoreCheck, StoreLimit, StoreReply, StoreRequest,
    },
};
use tidegate_redis::RedisStore;
use tidegate_testkit::{
    Subject,
    conformance::{self, Permits},
    servers::RedisServer,
    trace::{self, Deed},
};
use tokio::runtime::Runtime;

/// A key that no story had before, at times that the story tells.
struct Key {
    runtime: Arc<Runtime>,
    store: RedisStore,
    place: KeyRef,
    generation: u64,
}

impl Key {
    fn perform(&self, request: StoreRequest, now: Micros) -> StoreReply {
        let mut replies = self.runtime.block_on(self.store.perform_at(&[request], now));
        replies.pop().unwrap().unwrap()
    }
}

impl Subject for Key {
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult {
        let ask =
            StoreCheck { key_ref: self.place.clone(), demand, slot_mode: SlotMode::Acquire, receipt: true };
        let StoreReply::Decided(answers) = self.perform(StoreRequest::Decide(vec![ask]), now) else {
            panic!("no decision")
        };
        self.generation = answers[0].generation;
        answers[0].steps[0]
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        let charge = StoreCharge { receipts: vec![receipt], generation: self.generation };
        self.perform(StoreRequest::Refund { key_ref: self.place.clone(), charge, cost }, now);
    }

    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver) {
        let quota = self.store.effective_quota(quota);
        let limit = StoreLimit::new(self.place.limit.name(), vec![quota], QuotaSelection::All, how);
        self.place.limit = Arc::new(limit);
        // A key is carried over when it is next asked for.
        self.decide(now, Demand::probe(0));
    }

    fn create(&mut self, _now: Micros) {
        panic!("a store has no limiter that is created")
    }
}

/// Makes keys in one server.
struct Keys {
    runtime: Arc<Runtime>,
    store: RedisStore,
    made: AtomicU64,
}

impl Keys {
    fn of(server: &RedisServer) -> Self {
        let runtime = Arc::new(tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap());
        let store = runtime.block_on(store(&server.url()));
        Self { runtime, store, made: AtomicU64::new(0) }
    }

    fn next(&self, quota: Quota) -> Key {
        let key = self.made.fetch_add(1, Ordering::Relaxed).to_string();
        let limit = Arc::new(StoreLimit::new("kit", vec![quota], QuotaSelection::All, CarryOver::Keep));
        let place = KeyRef { limit, key, tier: 0 };
        Key { runtime: self.runtime.clone(), store: self.store.clone(), place, generation: 0 }
    }
}

#[test]
fn a_key_in_redis_conforms() {
    let server = RedisServer::start().unwrap();
    let keys = Keys::of(&server);
    conformance::check(24, Permits::Leased, |quota| keys.next(quota));
}

/// All stories but those of a limiter that is created, of which a store has none; of permits that nobody gives back; and
/// of a clock that goes back: a server's may, and then a key has less left than it would have, never more.
#[test]
fn the_stories_of_all_peers_are_true_in_redis() {
    let server = RedisServer::start().unwrap();
    let keys = Keys::of(&server);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/tests/traces");
    let (mut told, mut untold, mut lies) = (0, 0, Vec::new());
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        for story in fs::read_to_string(&path).unwrap().split("\nquota ").skip(1) {
            let story = format!("quota {story}");
            if !is_for_a_store(&story) {
                untold += 1;
                continue;
            }
            told += 1;
            if let Err(lie) = trace::run(&story, |quota| keys.next(keys.store.effective_quota(quota))) {
                lies.push(format!("{}:\n{story}{lie}", path.display()));
            }
        }
    }
    assert!(lies.is_empty(), "\n{}", lies.join("\n"));
    assert!(told > 95, "{told} told, {untold} not");
}

fn is_for_a_store(story: &str) -> bool {
    let mut last = Micros::ZERO;
    trace::read(story).unwrap().iter().all(|line| match line.deed {
        Deed::Start(quota) => !matches!(quota.kind(), AlgorithmKind::Concurrency(it) if it.lease().is_none()),
        Deed::Create { .. } => false,
        Deed::Ask { at, .. } | Deed::Cancel { at, .. } | Deed::Change { at, .. } => {
            last <= at && {
                last = at;
                true
            }
        }
    })
}
