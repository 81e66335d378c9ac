//! Two servers that share Redis admit together as many requests as one.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

#[path = "../../examples/fleet.rs"]
#[allow(dead_code, reason = "its main is not used")]
mod fleet;

use reqwest::Client;
use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};
use tidegate::{FailureMode, rule::Settings};
use tidegate_testkit::servers::RedisServer;
use tokio::net::TcpListener;

async fn serve(settings: Settings) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = fleet::app(settings).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// Counts the statuses of twenty requests, ten to each server.
async fn count_statuses(servers: [String; 2]) -> BTreeMap<u16, usize> {
    let client = Client::builder().no_proxy().build().unwrap();
    let requests: Vec<_> =
        servers.iter().cycle().take(20).map(|server| tokio::spawn(client.get(server).send())).collect();
    let mut counts = BTreeMap::new();
    for request in requests {
        *counts.entry(request.await.unwrap().unwrap().status().as_u16()).or_default() += 1;
    }
    counts
}

/// Waits until a server is connected to Redis, with requests from another address; before, all requests are denied.
async fn wait_for_redis(server: &str) {
    let elsewhere = Client::builder().no_proxy().local_address(IpAddr::from([127, 0, 0, 2])).build().unwrap();
    while elsewhere.get(server).send().await.unwrap().status() != 200 {}
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_share_redis() {
    let redis = RedisServer::start().unwrap();
    // A long deadline and the closed failure mode, so that no server decides without Redis.
    let settings = || {
        Settings::new()
            .store_url(redis.url())
            .deadline(Duration::from_secs(5))
            .failure_mode(FailureMode::Closed)
    };
    let servers = [serve(settings()).await, serve(settings()).await];
    for server in &servers {
        wait_for_redis(server).await;
    }
    assert_eq!(count_statuses(servers).await, BTreeMap::from([(200, 5), (429, 15)]));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_memory_servers_count_separately() {
    let servers = [serve(Settings::new()).await, serve(Settings::new()).await];
    assert_eq!(count_statuses(servers).await, BTreeMap::from([(200, 10), (429, 10)]));
}
