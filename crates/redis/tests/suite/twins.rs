//! Memory and Redis decide alike, on every kind of server.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is how a test fails, and what it did"
)]

use std::{env, ops::ControlFlow, time::Duration};
use tidegate_redis::{Compared, Plan, RedisStore, verify};
use tidegate_testkit::{
    servers::{RedisCluster, RedisServer, Version},
    strategy::seed,
};

/// How many steps to compare: a quarter of a million, or as many as `TIDEGATE_STEPS` says.
fn steps(of_a_million: u64) -> u64 {
    let all: u64 = env::var("TIDEGATE_STEPS").map_or(250_000, |steps| steps.parse().unwrap());
    all / 1_000 * of_a_million / 1_000
}

async fn compare(url: &str, steps: u64) -> Compared {
    let store = RedisStore::builder().deadline(Duration::from_secs(60)).connect(url).await.unwrap();
    let plan = Plan { steps, seed: seed() };
    let compared =
        verify(&store, plan, |_| ControlFlow::Continue(())).await.unwrap_or_else(|error| panic!("{error}"));
    println!("{compared:?}");
    compared
}

#[tokio::test]
async fn random_steps_without_a_difference() {
    let server = RedisServer::start().unwrap();
    let Compared {
        steps: done,
        decisions,
        denied,
        delayed,
        refunds,
        resets,
        changes,
        turns,
        renewals,
        checks,
        ..
    } = compare(&server.url(), steps(1_000_000)).await;
    assert!(done >= steps(1_000_000));
    for count in [decisions, denied, delayed, refunds, resets, changes, turns, renewals, checks] {
        assert!(count > done / 1_000, "a kind of step was hardly ever tried");
    }
    let left = server.command(&["KEYS", "tidegate:{*"]).unwrap();
    assert_eq!(left.items().len(), 0, "keys were left behind");
}

#[tokio::test]
async fn other_servers_decide_alike() {
    for program in ["valkey-server", "redis-6-server"] {
        let Some(version) = Version::of(program) else {
            tidegate_testkit::servers::skip_without(program);
            continue;
        };
        println!("{program} {version}");
        let server = RedisServer::builder().binary(program).start().unwrap();
        compare(&server.url(), steps(50_000)).await;
    }
}

#[tokio::test]
async fn a_cluster_decides_alike() {
    let cluster = RedisCluster::start().unwrap();
    let hosts: Vec<_> = cluster.urls().iter().map(|url| url.replace("redis://", "")).collect();
    compare(&format!("redis+cluster://{}", hosts.join(",")), steps(50_000)).await;
}
