//! A store outage under load: each rule follows its failure mode.

use crate::common::{BackgroundLoad, GatewayProcess, TEST_TIMEOUT, TestUpstream, get};
use http::StatusCode;
use std::net::SocketAddr;
use tidegate_testkit::servers::RedisServer;
use tokio::time::timeout;

/// The deadline is long, so that a busy machine does not look like an outage. A closed connection is detected at once anyway.
fn policy(server: &TestUpstream, redis: &RedisServer) -> String {
    format!(
        "listen: 127.0.0.1:0
{}store: {}
deadline: 20s
rules:
  - {{ name: ready, match: {{ path: /ready }}, key: ip, quota: 1000000/s, failure-mode: closed }}
  - {{ name: load, match: {{ path: /load }}, key: ip, quota: 1000000/s, failure-mode: open }}
  - {{ name: open, match: {{ path: /open }}, key: ip, quota: 5/day sliding-log, failure-mode: open }}
  - {{ name: closed, match: {{ path: /closed }}, key: ip, quota: 5/day sliding-log, failure-mode: closed }}
  - {{ name: local, match: {{ path: /local }}, key: ip, quota: 5/day sliding-log, failure-mode: local 1 }}
",
        server.upstream_config(),
        redis.url(),
    )
}

/// Returns the number of granted requests out of ten, and the status of the last one.
async fn send_ten_requests(address: SocketAddr, path: &str) -> (usize, StatusCode) {
    let (mut granted, mut last) = (0, StatusCode::OK);
    for _ in 0..10 {
        last = get(address, path).await.0;
        granted += usize::from(last == StatusCode::OK);
    }
    (granted, last)
}

async fn wait_for_status(address: SocketAddr, path: &str, status: StatusCode) {
    let has_status = async { while get(address, path).await.0 != status {} };
    timeout(TEST_TIMEOUT, has_status).await.unwrap_or_else(|_| panic!("{path} never returns {status}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_outage_follows_each_rules_setting() {
    const GRANTED: StatusCode = StatusCode::OK;
    const LIMITED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
    const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;

    let (server, redis) = (TestUpstream::start_ok().await, RedisServer::start().unwrap());
    let gateway = GatewayProcess::start(&policy(&server, &redis)).await;
    let address = gateway.address;
    // The gateway serves before its store is connected, with the failure modes of the rules.
    wait_for_status(address, "/ready", GRANTED).await;
    let load = BackgroundLoad::start(address, "/load", 4);
    for path in ["/open", "/closed", "/local"] {
        assert_eq!(send_ten_requests(address, path).await, (5, LIMITED), "{path}");
    }

    for _ in 0..2 {
        let before = load.sent_count();
        redis.kill();
        wait_for_status(address, "/closed", UNAVAILABLE).await;
        assert_eq!(send_ten_requests(address, "/open").await, (10, GRANTED));
        assert_eq!(send_ten_requests(address, "/closed").await, (0, UNAVAILABLE));
        // In local mode this process grants at most its quota, in addition to the grants of the store.
        let (granted, last) = send_ten_requests(address, "/local").await;
        assert!(granted <= 5 && last == LIMITED, "{granted} granted, then {last}");

        redis.restart().unwrap();
        // The restarted store is empty, so the quotas are available again.
        wait_for_status(address, "/closed", GRANTED).await;
        for path in ["/open", "/closed", "/local"] {
            wait_for_status(address, path, LIMITED).await;
            assert_eq!(send_ten_requests(address, path).await, (0, LIMITED), "{path}");
        }
        assert!(load.sent_count() > before);
    }
    assert_eq!(load.stop().await, [""; 0]);
}

/// Local counters survive reloads before and during an outage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_keeps_local_counters_in_an_outage() {
    let (server, redis) = (TestUpstream::start_ok().await, RedisServer::start().unwrap());
    let policy = |quota: &str| {
        format!(
            "listen: 127.0.0.1:0\n{}store: {}\ndeadline: 20s\nrules:\n  - {{ name: all, key: ip, quota: {quota} }}\n",
            server.upstream_config(),
            redis.url(),
        )
    };
    let gateway = GatewayProcess::start(&policy("5/day")).await;
    wait_for_status(gateway.address, "/", StatusCode::TOO_MANY_REQUESTS).await;
    for (reloads, (quota, more)) in
        [("6/day", 1), ("7/day sliding-log", 7), ("8/day", 2)].into_iter().enumerate()
    {
        gateway.replace_policy(&policy(quota));
        gateway.wait_for_output("policy reloaded", reloads + 1).await;
        assert_eq!(send_ten_requests(gateway.address, "/").await.0, more, "{quota}");
    }
    redis.kill();
    gateway.wait_for_output("store unavailable", 1).await;
    assert_eq!(send_ten_requests(gateway.address, "/").await.0, 0, "all eight are granted");
    gateway.replace_policy(&policy("10/day"));
    gateway.wait_for_output("policy reloaded", 4).await;
    assert_eq!(send_ten_requests(gateway.address, "/").await.0, 2);
}
