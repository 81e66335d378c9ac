//! The store behind sentinels: failovers of the primary.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::poll_until;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisSentinel, RedisServer, RespValue, wait_until};
use tokio::task::{JoinSet, block_in_place};

/// Long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(10);
const LIMIT: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn url_login_and_database_apply_to_servers() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password("s3cret/@")).unwrap();
    let hosts = sentinel_hosts(&sentinel);
    let connect = async |url: String| RedisStore::builder().deadline(DEADLINE).connect(&url).await;
    let store = connect(format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/3")).await.unwrap();
    let limiter = build_limiter(&store);
    assert_eq!(count_granted(&limiter, "a").await, LIMIT);

    let mut connection = sentinel.primary().unwrap().connect().unwrap();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap(), RespValue::Integer(0));
    connection.command(&["SELECT", "3"]).unwrap();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap(), RespValue::Integer(2));

    for (url, expected) in [
        (format!("redis+sentinel://:wrong@{hosts}/tidegate"), "check user and password"),
        (format!("redis+sentinel://{hosts}/tidegate"), "check user and password"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}/unknown"), "the sentinels have no primary"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}"), "missing name of the primary"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/x"), "not a number"),
    ] {
        let error = connect(url).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(!error.contains("s3cret"), "{error}");
    }

    // The first sentinel of the address may be unavailable.
    sentinel.sentinels()[0].kill();
    let store = connect(format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/3")).await.unwrap();
    assert_eq!(count_granted(&self::build_limiter(&store), "a").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failovers_under_load_keep_counts() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password("secret")).unwrap();
    let url = format!("redis+sentinel://:secret@{}/tidegate/1", sentinel_hosts(&sentinel));
    let store = RedisStore::builder().deadline(DEADLINE).connect(&url).await.unwrap();
    let limiter = Arc::new(build_limiter(&store));
    for _ in 0..4 {
        assert!(limiter.decide("quiet", 1).await.is_allowed());
    }
    let first = sentinel.primary().unwrap();
    wait_until("the replica has all writes", || check_replicated(first)).unwrap();

    let load = SentinelLoad::start(&limiter);
    load.wait_for_progress().await;
    block_in_place(|| sentinel.fail_over()).unwrap();
    wait_until_recovered(&store, &limiter).await;
    load.wait_for_progress().await;
    let second = sentinel.primary().unwrap();
    assert_ne!(second.port(), first.port());
    assert_eq!(connected_clients(first), 0, "a client is still connected to the old primary");
    assert!(connected_clients(second) > 0);

    block_in_place(|| {
        wait_until("the replica is connected", || check_replica_linked(first))?;
        sentinel.kill_primary()?;
        sentinel.wait_until_ok()
    })
    .unwrap();
    wait_until_recovered(&store, &limiter).await;
    load.wait_for_progress().await;
    let degraded = limiter.degraded_count();
    assert!(degraded > 0, "no decision during the failover");
    load.wait_for_progress().await;
    assert_eq!(limiter.degraded_count(), degraded, "the store no longer decides");
    load.stop().await;

    assert_eq!(sentinel.primary().unwrap().port(), first.port());
    assert_eq!(count_granted(&limiter, "quiet").await, LIMIT - 4);
    assert_eq!(store.last_error(), None);
    assert!(store.outages() >= 2);
}

/// A demoted primary keeps its clients connected and returns `READONLY` to their writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_primary_is_left() {
    let sentinel = RedisSentinel::start().unwrap();
    let url = format!("redis+sentinel://{}/tidegate", sentinel_hosts(&sentinel));
    let store = RedisStore::builder().deadline(DEADLINE).connect(&url).await.unwrap();
    let limiter = build_limiter(&store);
    for _ in 0..4 {
        assert!(limiter.decide("quiet", 1).await.is_allowed());
    }
    let old = sentinel.primary().unwrap();
    wait_until("the replica has all writes", || check_replicated(old)).unwrap();
    let new = block_in_place(|| {
        wait_until("the sentinels make the replica the primary", || {
            let new = sentinel.primary()?;
            if new.port() == old.port() {
                sentinel.sentinels()[0].command(&["SENTINEL", "FAILOVER", "tidegate"])?;
                return Err("the failover has started".into());
            }
            Ok(new)
        })
    })
    .unwrap();
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).unwrap();

    // A denial writes nothing, so it would not show which server decided.
    let mut admitted = 4;
    poll_until("decisions come from the new primary", async || {
        let decision = limiter.decide("quiet", 1).await;
        admitted += u64::from(decision.is_allowed());
        !decision.is_degraded()
    })
    .await;
    assert_eq!(admitted + count_granted(&limiter, "quiet").await, LIMIT);
    let degraded = limiter.degraded_count();
    assert_eq!(count_granted(&limiter, "other").await, LIMIT);
    assert_eq!(limiter.degraded_count(), degraded);
    let key = "tidegate:{rule:other}:1";
    assert_eq!(new.command(&["EXISTS", key]).unwrap(), RespValue::Integer(1));
}

/// Many tasks that check many keys.
struct SentinelLoad {
    tasks: JoinSet<()>,
    answers: Arc<AtomicU64>,
    is_stopped: Arc<AtomicBool>,
}

impl SentinelLoad {
    fn start(limiter: &Arc<Limiter>) -> Self {
        let (answers, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let (limiter, answers, is_over) = (limiter.clone(), answers.clone(), is_over.clone());
            let _task = tasks.spawn(async move {
                for index in task.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    limiter.decide(&format!("key-{}", index % 10_000), 1).await;
                    answers.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            });
        }
        Self { tasks, answers, is_stopped: is_over }
    }

    async fn wait_for_progress(&self) {
        let before = self.answers.load(Ordering::Relaxed);
        poll_until("the load continues", async || self.answers.load(Ordering::Relaxed) > before + 1_000)
            .await;
    }

    async fn stop(self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
    }
}

fn sentinel_hosts(sentinel: &RedisSentinel) -> String {
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|sentinel| sentinel.address().to_string()).collect();
    hosts.join(",")
}

/// Fails closed, so that the store has counted everything that is allowed.
fn build_limiter(store: &RedisStore) -> Limiter {
    let builder = Limiter::builder().name("rule").store(store.clone()).failure_mode(FailureMode::Closed);
    builder.build(&*format!("{LIMIT} per 52w")).unwrap()
}

async fn count_granted(limiter: &Limiter, key: &str) -> u64 {
    let mut granted = 0;
    for _ in 0..2 * LIMIT {
        granted += u64::from(limiter.decide(key, 1).await.is_allowed());
    }
    granted
}

async fn wait_until_recovered(store: &RedisStore, limiter: &Limiter) {
    poll_until("the store decides", async || {
        store.last_error().is_none() && !limiter.key("quiet").peek(1).await.is_degraded()
    })
    .await;
}

/// Whether the replica has all writes.
fn check_replicated(primary: &RedisServer) -> Result<(), String> {
    let role = primary.command(&["ROLE"])?;
    let [_, RespValue::Integer(written), replicas] = role.items() else { return Err(format!("{role}")) };
    let known = replicas.items().first().and_then(|replica| replica.items()[2].text()?.parse::<i64>().ok());
    if known >= Some(*written) { Ok(()) } else { Err(format!("{known:?} of {written}")) }
}

/// Whether a replica is connected to its primary.
fn check_replica_linked(replica: &RedisServer) -> Result<(), String> {
    let role = replica.command(&["ROLE"])?;
    match role.items() {
        [_, _, _, link, ..] if *link == "connected" => Ok(()),
        _ => Err(format!("{role}")),
    }
}

/// The number of clients whose last command is a script call.
fn connected_clients(server: &RedisServer) -> usize {
    let reply = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    reply.text().unwrap().lines().filter(|line| line.contains("cmd=evalsha")).count()
}
