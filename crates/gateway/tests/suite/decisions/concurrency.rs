//! Concurrent clients of the decision API: exactly the limit of the quota is admitted.

use super::{DecisionServer, stores};
use crate::harness::TEST_TIMEOUT;
use serde_json::json;
use std::sync::Arc;
use tidegate_rule::Rules;
use tidegate_testkit::servers::RedisServer;
use tokio::time::timeout;

const CLIENT_COUNT: usize = 200;

/// A quota of every algorithm, its API call, and the number of requests it admits at once. It admits no more during a test.
const QUOTAS: [(&str, &str, usize); 10] = [
    ("50 per 52w", "check", 50),
    ("50 per 52w leaky-bucket queue 49 nodelay", "check", 50),
    ("50 per 364d fixed-window from-first-hit", "check", 50),
    ("50 per 52w sliding-window", "check", 50),
    ("50 per 52w sliding-strict 4", "check", 50),
    ("50 per 52w sliding-log", "check", 50),
    ("50 per 52w smooth", "check", 1),
    ("50 per 52w warm-up 4s cold 3", "check", 1),
    ("50 per 52w", "reserve", 50),
    ("50 at once", "acquire", 50),
];

/// Checks all quotas with this store.
async fn check_quotas_under_concurrency(store: &str, rules: impl Fn() -> Rules) {
    let quotas = QUOTAS.iter().enumerate();
    let quotas = quotas
        .map(|(at, (quota, ..))| format!("  - {{ name: r{at}, key: header x-user, quota: {quota} }}\n"));
    let policy = format!("decisions: 127.0.0.1:0\n{store}rules:\n{}", quotas.collect::<String>());
    let api = Arc::new(DecisionServer::start_with(&policy, rules()));
    stores::wait_for_response(&api, "peek", &json!({"rule": "r0", "key": "bob"}), stores::is_store_connected)
        .await;
    for (at, (quota, call, most)) in QUOTAS.into_iter().enumerate() {
        let tasks: Vec<_> = (0..CLIENT_COUNT)
            .map(|_| {
                let (api, query) = (api.clone(), json!({"rule": format!("r{at}"), "key": "ann"}));
                tokio::spawn(async move { api.post(call, &query).await })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            match timeout(TEST_TIMEOUT, task).await.unwrap().unwrap() {
                (200, reply) => {
                    assert_eq!(
                        (&reply["allowed"], &reply["degraded"]),
                        (&json!(true), &json!(false)),
                        "{reply}"
                    );
                    admitted += 1;
                }
                (status, reply) => assert_eq!(status, 429, "{reply}"),
            }
        }
        assert_eq!(admitted, most, "{call} of {quota}");
    }
    Arc::into_inner(api).unwrap().stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_clients_get_exactly_the_quota_in_memory() {
    check_quotas_under_concurrency("", Rules::new).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_clients_get_exactly_the_quota_in_redis() {
    let server = RedisServer::start().unwrap();
    check_quotas_under_concurrency(
        &format!("store: {}\nfailure-mode: closed\n", server.url()),
        stores::redis_rules,
    )
    .await;
}
