//! New policies while requests come.

use crate::stage::{Client, Gateway, LONG, Load, Server, get};
use http::StatusCode;
use tidegate_testkit::servers::RedisServer;
use tokio::time::timeout;

/// The policy of this number: `counted` never changes, `other` always does, and every third time so does what there is to
/// connect to.
fn policy(number: usize, server: &Server) -> String {
    format!(
        "listen: 127.0.0.1:0
connections: {{ idle-timeout: {}s }}
{}rules:
  - {{ name: counted, match: {{ path: /counted }}, key: ip, quota: 50/day sliding-log }}
  - {{ name: other, match: {{ path: /other }}, key: ip, quota: {}/s }}
  - {{ name: version, match: {{ path: /version }}, deny: all, on-limit: {{ status: 418, body: 'policy {number}' }} }}
",
        60 + number / 3,
        server.upstream(),
        100_000 + number,
    )
}

async fn is_in_force(gateway: &Gateway, number: usize) {
    let in_force = async {
        loop {
            let (status, version) = get(gateway.address, "/version").await;
            assert_eq!(status, 418);
            if version == format!("policy {number}") {
                return;
            }
        }
    };
    timeout(LONG, in_force).await.unwrap_or_else(|_| panic!("policy {number} is not in force"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_policies_follow_each_other_and_no_request_is_lost() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(0, &server)).await;
    let load = Load::start(gateway.address, "/other", 4);
    let mut granted = 0;
    for number in 1..=100 {
        let before = load.asked();
        gateway.replace(&policy(number, &server));
        // Most are told of; for some the file has to speak for itself.
        if number % 10 != 0 {
            gateway.signal("HUP");
        }
        is_in_force(&gateway, number).await;
        let (status, _) = get(gateway.address, "/counted").await;
        let is_granted = status == StatusCode::OK;
        assert!(is_granted || status == StatusCode::TOO_MANY_REQUESTS, "{status}");
        granted += usize::from(is_granted);
        assert_eq!(is_granted, number <= 50, "request {number}, of which {granted} were granted");
        let served = async {
            while load.asked() == before {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, served).await.expect("requests are served meanwhile");
    }
    assert_eq!(load.lost().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_policy_that_is_wrong_changes_nothing() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(0, &server)).await;
    let load = Load::start(gateway.address, "/other", 2);
    let stays = "the policy stays as it was";
    let wrong = [
        "rules: [".to_owned(),
        policy(1, &server).replace("100001/s", "a lot"),
        policy(1, &server).replace("routes: app", "routes: nowhere"),
        policy(1, &server).replace("http://127.0.0.1", "http://no-such-name.invalid"),
        policy(1, &server).replace("127.0.0.1:0", "192.0.2.1:80"),
    ];
    for (number, wrong) in wrong.iter().enumerate() {
        gateway.replace(wrong);
        gateway.signal("HUP");
        gateway.until_told(stays, number + 1).await;
        assert_eq!(get(gateway.address, "/version").await.1, "policy 0");
    }
    gateway.replace(&policy(2, &server));
    is_in_force(&gateway, 2).await;
    assert_eq!(load.lost().await, [""; 0]);
}

#[tokio::test]
async fn a_connection_outlives_a_new_policy_of_the_same_servers() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(0, &server)).await;
    let mut client = Client::to(gateway.address).await;
    assert_eq!(client.get("/").await.unwrap().0, 200);
    gateway.replace(&policy(1, &server));
    gateway.signal("HUP");
    is_in_force(&gateway, 1).await;
    assert!(client.is_open().await);
    assert_eq!(client.get("/version").await.unwrap().1, "policy 1");
}

#[tokio::test]
async fn it_ends_in_order_when_it_is_told_to() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(0, &server)).await;
    assert_eq!(get(gateway.address, "/").await.0, 200);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// A policy of this version, whose rules count in this store and refuse everything without it.
fn stored(version: usize, server: &Server, store: &str) -> String {
    format!(
        "listen: 127.0.0.1:0
{}store: {store}
on-outage: closed
rules:
  - {{ name: load, match: {{ path: /load }}, key: ip, quota: 1000000/s }}
  - {{ name: version, match: {{ path: /version }}, deny: all, on-limit: {{ status: 418, body: 'policy {version}' }} }}
",
        server.upstream(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_connects_to_the_new_store_before_it_takes_over() {
    let server = Server::ok().await;
    let stores = [RedisServer::start().unwrap(), RedisServer::start().unwrap()];
    let gateway = Gateway::serve(&stored(0, &server, &stores[0].url())).await;
    // The first requests wait for the first connection.
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
    let load = Load::start(gateway.address, "/load", 4);
    for version in 1..=6 {
        gateway.replace(&stored(version, &server, &stores[version % 2].url()));
        gateway.signal("HUP");
        is_in_force(&gateway, version).await;
        let before = load.asked();
        let served = async {
            while load.asked() < before + 50 {
                tokio::task::yield_now().await;
            }
        };
        timeout(LONG, served).await.expect("requests are served");
    }
    assert_eq!(load.lost().await, [""; 0]);
    assert_eq!(gateway.count_told("store unavailable"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_to_an_unreachable_store_keeps_the_policy_in_force() {
    let (server, redis) = (Server::ok().await, RedisServer::start().unwrap());
    let gone = RedisServer::start().unwrap();
    gone.kill();
    let gateway = Gateway::serve(&stored(0, &server, &redis.url())).await;
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
    gateway.replace(&stored(1, &server, &gone.url()));
    gateway.signal("HUP");
    gateway.until_told("is a server running there", 1).await;
    is_in_force(&gateway, 0).await;
    assert_eq!(get(gateway.address, "/load").await.0, StatusCode::OK);
}
