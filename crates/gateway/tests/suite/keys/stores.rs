//! Rules with Redis as their store.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    decisions::redis_rules,
    harness::TestBackend,
    overload::wait_until,
};
use tidegate_testkit::servers::RedisServer;

/// Starts a gateway with this store, and waits until it is available.
async fn start(server: &TestBackend, redis: &RedisServer, rest: &str) -> AdminGateway {
    let policy = format!(
        "{LISTENERS}upstreams: {{ app: http://{} }}\nroutes: app\nstore: {}\n{rest}",
        server.address,
        redis.url()
    );
    let gateway = AdminGateway::start_policy(&policy, redis_rules());
    wait_until("the store is available", async || {
        gateway.get("/ready").await.status() == 200
            && gateway.status_at("/stores/0/health").await == "available"
    })
    .await;
    gateway
}

/// A rule that shows that the store is available.
const READY_RULE: &str =
    "  - { name: ready, match: { path: /ready }, quota: 1000000/h, failure-mode: closed }\n";

#[tokio::test]
async fn keys_in_a_store_have_the_declared_prefix() {
    let (server, redis) = (TestBackend::start_echo().await, RedisServer::start().unwrap());
    let start = async |prefix: &str| {
        let rules =
            format!("{prefix}rules:\n{READY_RULE}  - {{ name: all, match: {{ path: /all }}, quota: 1/h }}\n");
        start(&server, &redis, &rules).await
    };
    let (shop, other) = (start("prefix: shop\n").await, start("prefix: other\n").await);
    assert_eq!(shop.statuses("/all", "", 2).await, [200, 429]);
    assert_eq!(other.statuses("/all", "", 1).await, [200], "it has counters of its own");
    let keys = redis.command(&["KEYS", "*"]).unwrap();
    let keys: Vec<_> = keys.items().iter().filter_map(|key| key.text()).collect();
    for prefix in ["shop", "other"] {
        assert!(keys.iter().any(|key| key.starts_with(prefix)), "{prefix}: {keys:?}");
    }
    for gateway in [shop, other] {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn decision_waits_for_the_store_until_its_deadline() {
    let (server, redis) = (TestBackend::start_echo().await, RedisServer::start().unwrap());
    let start = async |deadline: &str| {
        let rules = format!(
            "deadline: {deadline}\nfailure-mode: closed\nrules:\n{READY_RULE}  - {{ name: all, quota: 1000/h }}\n"
        );
        start(&server, &redis, &rules).await
    };
    let (patient, strict) = (start("1h").await, start("20ms").await);
    redis.pause().unwrap();
    let mut waiting = patient.send("/", "").await;
    // Three decisions of the other gateway miss their deadline in the meantime.
    for _ in 0..3 {
        assert_eq!(strict.status_of("/", "").await, 503);
    }
    redis.resume().unwrap();
    assert_eq!(waiting.read_response().await.status(), 200);
    for gateway in [patient, strict] {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn prefetched_tokens_are_spent_without_calls_to_the_store() {
    let (server, redis) = (TestBackend::start_echo().await, RedisServer::start().unwrap());
    let rules = "rules:\n  - { name: each, quota: 1000000/h, prefetch: 1h }\n";
    let gateway = start(&server, &redis, rules).await;
    let calls = async || gateway.status_at("/stores/0/calls").await.as_u64().unwrap();
    let before = calls().await;
    assert_eq!(gateway.statuses("/", "", 300).await, vec![200; 300]);
    let made = calls().await - before;
    assert!(made < 100, "{made} calls for 300 requests");
    gateway.stop().await;
}

#[tokio::test]
async fn failure_mode_decides_while_the_store_is_unavailable() {
    let (server, redis) = (TestBackend::start_echo().await, RedisServer::start().unwrap());
    let rules = format!(
        "failure-mode: closed\nrules:\n{READY_RULE}\
         \x20 - {{ name: closed, match: {{ path: /closed }}, quota: 1000/h }}\n\
         \x20 - {{ name: open, match: {{ path: /open }}, quota: 1/h, failure-mode: open }}\n\
         \x20 - {{ name: local, match: {{ path: /local }}, quota: 4/h, failure-mode: local 2 }}\n"
    );
    let gateway = start(&server, &redis, &rules).await;
    assert_eq!(gateway.statuses("/open", "", 2).await, [200, 429]);
    redis.kill();
    gateway.wait_for_status("/closed", "", 503).await;
    assert_eq!(gateway.statuses("/open", "", 3).await, [200; 3]);
    assert_eq!(gateway.statuses("/local", "", 3).await, [200, 200, 429], "half of the quota");
    gateway.stop().await;
}
