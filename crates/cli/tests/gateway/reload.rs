//! Policy reloads under load.

use crate::common::{BackgroundLoad, GatewayProcess, HttpClient, TEST_TIMEOUT, TestUpstream, get};
use http::StatusCode;
use tidegate_testkit::servers::RedisServer;
use tokio::time::timeout;

/// The policy with this number: `counted` never changes, `other` always does, and the connection settings change every third
/// time.
fn policy(number: usize, server: &TestUpstream) -> String {
    format!(
        "listen: 127.0.0.1:0
connections: {{ idle-timeout: {}s }}
{}rules:
  - {{ name: counted, match: {{ path: /counted }}, key: ip, quota: 50/day sliding-log }}
  - {{ name: other, match: {{ path: /other }}, key: ip, quota: {}/s }}
  - {{ name: version, match: {{ path: /version }}, deny: all, on-limit: {{ status: 418, body: 'policy {number}' }} }}
",
        60 + number / 3,
        server.upstream_config(),
        100_000 + number,
    )
}

async fn wait_until_active(gateway: &GatewayProcess, number: usize) {
    let is_active = async {
        loop {
            let (status, version) = get(gateway.address, "/version").await;
            assert_eq!(status, 418);
            if version == format!("policy {number}") {
                return;
            }
        }
    };
    timeout(TEST_TIMEOUT, is_active).await.unwrap_or_else(|_| panic!("policy {number} is not active"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hundred_reloads_lose_no_request() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(0, &server)).await;
    let load = BackgroundLoad::start(gateway.address, "/other", 4);
    let mut granted = 0;
    for number in 1..=100 {
        let before = load.sent_count();
        gateway.replace_policy(&policy(number, &server));
        // Some reloads have no signal, so the gateway must detect the change of the file.
        if number % 10 != 0 {
            gateway.send_signal("HUP");
        }
        wait_until_active(&gateway, number).await;
        let (status, _) = get(gateway.address, "/counted").await;
        let is_granted = status == StatusCode::OK;
        assert!(is_granted || status == StatusCode::TOO_MANY_REQUESTS, "{status}");
        granted += usize::from(is_granted);
        assert_eq!(is_granted, number <= 50, "request {number}, of which {granted} were granted");
        let served = async {
            while load.sent_count() == before {
                tokio::task::yield_now().await;
            }
        };
        timeout(TEST_TIMEOUT, served).await.expect("requests are served meanwhile");
    }
    assert_eq!(load.stop().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_policy_is_rejected_on_reload() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(0, &server)).await;
    let load = BackgroundLoad::start(gateway.address, "/other", 2);
    let rejected = "policy rejected, keeping the previous one";
    let invalid = [
        "rules: [".to_owned(),
        policy(1, &server).replace("100001/s", "a lot"),
        policy(1, &server).replace("routes: app", "routes: nowhere"),
        policy(1, &server).replace("http://127.0.0.1", "http://no-such-name.invalid"),
        policy(1, &server).replace("127.0.0.1:0", "192.0.2.1:80"),
    ];
    for (number, policy) in invalid.iter().enumerate() {
        gateway.replace_policy(policy);
        gateway.send_signal("HUP");
        gateway.wait_for_output(rejected, number + 1).await;
        assert_eq!(get(gateway.address, "/version").await.1, "policy 0");
    }
    gateway.replace_policy(&policy(2, &server));
    wait_until_active(&gateway, 2).await;
    assert_eq!(load.stop().await, [""; 0]);
}

#[tokio::test]
async fn reload_keeps_upstream_connections() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(0, &server)).await;
    let mut client = HttpClient::connect(gateway.address).await;
    assert_eq!(client.get("/").await.unwrap().0, 200);
    gateway.replace_policy(&policy(1, &server));
    gateway.send_signal("HUP");
    wait_until_active(&gateway, 1).await;
    assert!(client.is_open().await);
    assert_eq!(client.get("/version").await.unwrap().1, "policy 1");
}

#[tokio::test]
async fn sigterm_shuts_down_gracefully() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(0, &server)).await;
    assert_eq!(get(gateway.address, "/").await.0, 200);
    gateway.send_signal("TERM");
    assert_eq!(gateway.wait().await.code(), Some(0));
}

/// A policy with this version, whose rules count in this store and fail closed without it.
fn policy_with_store(version: usize, server: &TestUpstream, store: &str) -> String {
    format!(
        "listen: 127.0.0.1:0
{}store: {store}
deadline: 5s
failure-mode: closed
rules:
  - {{ name: load, match: {{ path: /load }}, key: ip, quota: 1000000/s }}
  - {{ name: version, match: {{ path: /version }}, deny: all, on-limit: {{ status: 418, body: 'policy {version}' }} }}
",
        server.upstream_config(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_connects_to_the_new_store_before_it_takes_over() {
    let server = TestUpstream::start_ok().await;
    let stores = [RedisServer::start().unwrap(), RedisServer::start().unwrap()];
    let gateway = GatewayProcess::start(&policy_with_store(0, &server, &stores[0].url())).await;
    // The first requests wait for the first connection.
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
    let load = BackgroundLoad::start(gateway.address, "/load", 4);
    for version in 1..=6 {
        gateway.replace_policy(&policy_with_store(version, &server, &stores[version % 2].url()));
        gateway.send_signal("HUP");
        wait_until_active(&gateway, version).await;
        let before = load.sent_count();
        let served = async {
            while load.sent_count() < before + 50 {
                tokio::task::yield_now().await;
            }
        };
        timeout(TEST_TIMEOUT, served).await.expect("requests are served");
    }
    assert_eq!(load.stop().await, [""; 0]);
    assert_eq!(gateway.count_output("store unavailable"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_to_an_unreachable_store_keeps_the_policy_in_force() {
    let (server, redis) = (TestUpstream::start_ok().await, RedisServer::start().unwrap());
    let gone = RedisServer::start().unwrap();
    gone.kill();
    let gateway = GatewayProcess::start(&policy_with_store(0, &server, &redis.url())).await;
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
    gateway.replace_policy(&policy_with_store(1, &server, &gone.url()));
    gateway.send_signal("HUP");
    gateway.wait_for_output("check that a server is running", 1).await;
    wait_until_active(&gateway, 0).await;
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
}
