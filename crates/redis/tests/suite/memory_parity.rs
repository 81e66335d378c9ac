//! Redis and the in-memory store make the same decisions, on every kind of server.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print their progress"
)]

use std::{env, ops::ControlFlow, time::Duration};
use tidegate_redis::{RedisStore, VerifyOptions, VerifyReport, verify};
use tidegate_testkit::{
    servers::{RedisCluster, RedisServer, ServerVersion},
    strategy::seed,
};

/// A share of `TIDEGATE_STEPS`, which is 100,000 by default.
fn step_count(of_a_million: u64) -> u64 {
    let all: u64 = env::var("TIDEGATE_STEPS").map_or(100_000, |steps| steps.parse().unwrap());
    all / 1_000 * of_a_million / 1_000
}

async fn compare(url: &str, steps: u64) -> VerifyReport {
    let store = RedisStore::builder().deadline(Duration::from_secs(60)).connect(url).await.unwrap();
    let options = VerifyOptions { steps, seed: seed() };
    let report = verify(&store, options, |_| ControlFlow::Continue(()))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{report:?}");
    report
}

#[tokio::test]
async fn random_steps_match_memory() {
    let server = RedisServer::start().unwrap();
    let VerifyReport {
        steps: done,
        decisions,
        denied,
        delayed,
        refunds,
        resets,
        quota_changes,
        limit_switches,
        renewals,
        checks,
        ..
    } = compare(&server.url(), step_count(1_000_000)).await;
    assert!(done >= step_count(1_000_000));
    for count in
        [decisions, denied, delayed, refunds, resets, quota_changes, limit_switches, renewals, checks]
    {
        assert!(count > done / 1_000, "a kind of step was rarely executed");
    }
    let left = server.command(&["KEYS", "tidegate:{*"]).unwrap();
    assert_eq!(left.items().len(), 0, "keys were left behind");
}

#[tokio::test]
async fn other_servers_match_memory() {
    for program in ["valkey-server", "redis-6-server"] {
        let Some(version) = ServerVersion::detect(program) else {
            tidegate_testkit::servers::skip_without(program);
            continue;
        };
        println!("{program} {version}");
        let server = RedisServer::builder().binary(program).start().unwrap();
        compare(&server.url(), step_count(50_000)).await;
    }
}

#[tokio::test]
async fn cluster_matches_memory() {
    let cluster = RedisCluster::start().unwrap();
    let hosts: Vec<_> = cluster.urls().iter().map(|url| url.replace("redis://", "")).collect();
    compare(&format!("redis+cluster://{}", hosts.join(",")), step_count(50_000)).await;
}
