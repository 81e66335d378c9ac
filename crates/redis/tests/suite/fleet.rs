//! Several processes that share one server.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking, and the child processes print their results"
)]

use std::{
    env,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};
use tidegate_core::{AlgorithmKind, Micros, Quota};
use tidegate_limiter::{FailureMode, Limiter, TokenPrefetch};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisServer, RespConnection, RespValue, faketime_library, skip_without};
use tokio::task::JoinSet;

const PROCESS_COUNT: usize = 4;
const TASKS_PER_PROCESS: u64 = 64;
const CHECKS_PER_TASK: u64 = 15;
/// The number of checks of each key.
const TOTAL_CHECKS: u64 = PROCESS_COUNT as u64 * TASKS_PER_PROCESS * CHECKS_PER_TASK;

/// At least one quota of each algorithm; all of them deny most checks.
const QUOTAS: [&str; 15] = [
    "100/min burst 50",
    "100/s burst 20",
    "100/min leaky-bucket queue 50 nodelay",
    "100/min leaky-bucket queue 50 delay 20",
    "100/s fixed-window",
    "100/min fixed-window from-first-hit",
    "100/s sliding-window",
    "100/s sliding-strict 10",
    "100/s sliding-log",
    "100/s smooth",
    "100/s smooth burst 50",
    "100/s warm-up 4s cold 3",
    "100 total",
    "100/day fixed-window in Asia/Shanghai",
    "30 at once lease 10m",
];

/// The lifetime of prefetched tokens.
const PREFETCH_TTL: Duration = Duration::from_millis(200);

/// The environment variables that pass the server's address and the mode to a child process.
const ADDRESS_ENV: &str = "TIDEGATE_FLEET";
const MODE_ENV: &str = "TIDEGATE_FLEET_MODE";

/// How the fleet counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FleetMode {
    /// The server makes every decision, in batches.
    Strict,
    /// With prefetched tokens.
    Prefetched,
}

impl FleetMode {
    /// The maximum number of allowed checks of the fleet.
    fn max_admitted(self, quota: &Quota, window: Micros) -> u64 {
        let is_leased = self == Self::Prefetched && quota.rate().is_some();
        let ahead = if is_leased { PREFETCH_TTL.into() } else { Micros::ZERO };
        quota.bound().with_prefetch(ahead).max_in_window(window)
    }
}

#[test]
fn four_processes_share_one_bound() {
    let names: Vec<_> = QUOTAS.iter().map(|quota| quota.parse::<Quota>().unwrap().kind().name()).collect();
    assert!(AlgorithmKind::names().all(|name| names.contains(&name)), "an algorithm is missing: {names:?}");
    for mode in [FleetMode::Strict, FleetMode::Prefetched] {
        let server = RedisServer::start().unwrap();
        let process =
            || spawn(Command::new(env::current_exe().unwrap()).env(MODE_ENV, format!("{mode:?}")), &server);
        check_bounds([(); PROCESS_COUNT].map(|()| process()), mode);
    }
}

/// Only the server's clock matters: processes whose clocks differ by hours share the same bound.
#[test]
fn wrong_process_clocks_change_nothing() {
    let Some(library) = faketime_library() else {
        skip_without("faketime");
        return;
    };
    let server = RedisServer::start().unwrap();
    let children = ["-1h", "+0", "+1h", "+24h"].map(|offset| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.env("LD_PRELOAD", &library).env("FAKETIME", offset);
        // Only the wall clock can be set; the monotonic clock stays right.
        spawn(command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1").env("DONT_FAKE_MONOTONIC", "1"), &server)
    });
    let clocks = check_bounds(children, FleetMode::Strict);
    let apart = clocks.iter().max().unwrap() - clocks.iter().min().unwrap();
    assert!(apart > 24 * 3_600, "faketime has no effect: {clocks:?}");
}

/// A child process: prints its wall clock, and the number of allowed checks of each quota.
#[test]
#[ignore = "other tests start it"]
fn fleet_process() {
    let Ok(address) = env::var(ADDRESS_ENV) else { return };
    let mut connection = RespConnection::connect_tcp(address.parse().unwrap()).unwrap();
    let is_leased = env::var(MODE_ENV).is_ok_and(|mode| mode == format!("{:?}", FleetMode::Prefetched));
    println!("\nclock {}", wall_clock());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::builder()
            .deadline(Duration::from_secs(30))
            .connect(&format!("redis://{address}"))
            .await
            .unwrap();
        for (index, quota) in QUOTAS.into_iter().enumerate() {
            let builder = Limiter::builder().name(&format!("rule-{index}")).store(store.clone());
            let builder = if is_leased {
                builder.prefetch(TokenPrefetch::default().ttl(PREFETCH_TTL))
            } else {
                builder
            };
            let limiter = Arc::new(builder.failure_mode(FailureMode::Closed).build(quota).unwrap());
            let from = server_time(&mut connection);
            let mut tasks = JoinSet::new();
            for _ in 0..TASKS_PER_PROCESS {
                let _task = tasks.spawn(run_checks(limiter.clone()));
            }
            let allowed: u64 = tasks.join_all().await.into_iter().sum();
            println!("result {allowed} {} {from} {}", limiter.degraded_count(), server_time(&mut connection));
        }
    });
}

async fn run_checks(limiter: Arc<Limiter>) -> u64 {
    let counts_permits = matches!(limiter.quotas()[0].kind(), AlgorithmKind::Concurrency(_));
    let mut allowed = 0;
    for _ in 0..CHECKS_PER_TASK {
        if counts_permits {
            let permit = limiter.key("key").permit().await;
            allowed += u64::from(permit.decision().is_allowed());
            // Never released, so that all permits are in flight.
            std::mem::forget(permit);
        } else {
            allowed += u64::from(limiter.decide("key", 1).await.is_allowed());
        }
    }
    allowed
}

/// Compares the allowed checks of all processes with the bounds of the quotas; returns the processes' clocks.
fn check_bounds(children: [Child; PROCESS_COUNT], mode: FleetMode) -> Vec<u64> {
    let mut clocks = Vec::new();
    let mut sums = [(0, u64::MAX, 0); QUOTAS.len()];
    for child in children {
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{text}");
        let result = |word: &str| -> Vec<Vec<u64>> {
            let lines = text.lines().filter_map(|line| line.strip_prefix(word));
            lines.map(|line| line.split(' ').map(|number| number.parse().unwrap()).collect()).collect()
        };
        clocks.extend(result("clock ").into_iter().flatten());
        let result = result("result ");
        assert_eq!(result.len(), QUOTAS.len(), "{text}");
        for ((sum, first, last), result) in sums.iter_mut().zip(result) {
            let [allowed, 0, from, to] = result[..] else {
                panic!("some decisions are degraded: {result:?}")
            };
            (*sum, *first, *last) = (*sum + allowed, from.min(*first), to.max(*last));
        }
    }
    for (quota, (sum, first, last)) in QUOTAS.into_iter().zip(sums) {
        let window = Micros::new(last - first);
        let bound = mode.max_admitted(&quota.parse().unwrap(), window);
        println!("{mode:?} {quota}: {sum} of {TOTAL_CHECKS} allowed, at most {bound} within {window}");
        assert!((1..=bound).contains(&sum), "{quota}: {sum} allowed, at most {bound} within {window}");
        assert!(sum < TOTAL_CHECKS, "{quota}: nothing was denied");
    }
    let (slots, ..) = sums[QUOTAS.len() - 1];
    assert_eq!(slots, 30, "each slot is acquired once");
    clocks
}

fn spawn(command: &mut Command, server: &RedisServer) -> Child {
    command
        .args(["--exact", "fleet::fleet_process", "--ignored", "--nocapture"])
        .env(ADDRESS_ENV, server.address().to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The server's clock, in microseconds.
fn server_time(connection: &mut RespConnection) -> u64 {
    let result = connection.command(&["TIME"]).unwrap();
    let number = |value: &RespValue| value.text().unwrap().parse::<u64>().unwrap();
    number(&result.items()[0]) * 1_000_000 + number(&result.items()[1])
}

#[allow(clippy::disallowed_methods, reason = "the test proves that the wall clock is ignored")]
fn wall_clock() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}
