//! The decision API with Redis.

use super::DecisionServer;
use crate::harness::TEST_TIMEOUT;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tidegate_redis::RedisStore;
use tidegate_rule::Rules;
use tidegate_testkit::servers::RedisServer;
use tokio::time::timeout;

/// Rules that can connect to Redis, by default with a long deadline: these tests do not depend on time.
pub(crate) fn redis_rules() -> Rules {
    let rules = Rules::new();
    rules.set_connect(|connection| {
        let deadline = connection.deadline.unwrap_or(Duration::from_secs(5));
        let mut builder = RedisStore::builder().bind_to_runtime().deadline(deadline);
        if let Some(prefix) = connection.prefix {
            builder = builder.prefix(prefix);
        }
        Ok(Arc::new(builder.open(connection.url)?))
    });
    rules
}

const REDIS_POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: login, key: header x-user, quota: 3 per 52w }
  - { name: jobs, key: header x-user, quota: 1 at once }
  - { name: open, key: header x-user, quota: 3 per 52w, failure-mode: open }
";

/// Sends a call until its response matches.
pub(super) async fn wait_for_response(
    api: &DecisionServer,
    call: &str,
    query: &Value,
    matches: impl Fn(u16, &Value) -> bool,
) {
    let asking = async {
        loop {
            let (status, reply) = api.post(call, query).await;
            if matches(status, &reply) {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, asking).await.unwrap();
}

/// Whether the store is connected: it is unavailable before.
pub(super) fn is_store_connected(status: u16, body: &Value) -> bool {
    status == 200 && body["degraded"] == false
}

#[tokio::test]
async fn services_share_redis_counters_and_report_outage() {
    let redis = RedisServer::start().unwrap();
    let policy = format!("store: {}\nfailure-mode: closed{REDIS_POLICY}", redis.url());
    let (one, other) = (
        DecisionServer::start_with(&policy, redis_rules()),
        DecisionServer::start_with(&policy, redis_rules()),
    );
    let query = |rule: &str, cost: u64| json!({"rule": rule, "key": "ann", "cost": cost});
    for api in [&one, &other] {
        wait_for_response(api, "peek", &query("login", 1), is_store_connected).await;
    }
    let (_, reply) = one.post("check", &query("login", 2)).await;
    assert_eq!((&reply["remaining"], &reply["degraded"]), (&json!(1), &json!(false)));
    assert_eq!(other.post("check", &query("login", 2)).await.0, 429);
    let both = json!({"queries": [query("login", 1), query("open", 9)], "all-or-nothing": true});
    assert_eq!(other.post("check", &both).await.1["allowed"], false);
    assert_eq!(one.post("peek", &query("login", 1)).await.1["remaining"], 1, "nothing was charged");

    // A reservation at one gateway is visible to the other until it is canceled.
    let (_, reservation) = one.post("reserve", &query("login", 1)).await;
    assert_eq!(other.post("check", &query("login", 1)).await.0, 429);
    assert_eq!(one.post("cancel", &json!({"id": reservation["id"]})).await.0, 200);
    assert_eq!(other.post("check", &query("login", 1)).await.0, 200);
    let (_, reservation) = one.post("acquire", &query("jobs", 1)).await;
    assert_eq!(other.post("acquire", &query("jobs", 1)).await.0, 429);
    assert_eq!(one.post("release", &json!({"id": reservation["id"]})).await.0, 200);
    wait_for_response(&other, "acquire", &query("jobs", 1), |status, _| status == 200).await;
    assert_eq!(one.post("reset", &json!({"rule": "login", "key": "ann"})).await.0, 200);
    assert_eq!(other.post("peek", &query("login", 1)).await.1["remaining"], 3);

    redis.kill();
    wait_for_response(&one, "check", &query("login", 1), |status, _| status == 503).await;
    let (status, reply) = one.post("check", &query("login", 1)).await;
    assert_eq!(
        (status, &reply["allowed"], &reply["degraded"], reply["detail"].as_str()),
        (503, &json!(false), &json!(true), Some("The store is unavailable."))
    );
    let (status, reply) = one.post("check", &query("open", 1)).await;
    assert_eq!((status, &reply["allowed"], &reply["degraded"]), (200, &json!(true), &json!(true)));
    assert_eq!(one.post("reset", &json!({"rule": "login", "key": "ann"})).await.0, 503);
    redis.restart().unwrap();
    wait_for_response(&one, "check", &query("login", 1), is_store_connected).await;
    one.stop().await;
    other.stop().await;
}
