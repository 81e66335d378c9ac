//! A store behind sentinels, whose primary changes.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::soon;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisSentinel, RedisServer, Value, until};
use tokio::task::{JoinSet, block_in_place};

/// Long enough for a machine that is busy with something else.
const DEADLINE: Duration = Duration::from_secs(10);
const LIMIT: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_and_a_database_are_those_of_the_servers() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password("s3cret/@")).unwrap();
    let hosts = hosts(&sentinel);
    let connect = async |url: String| RedisStore::builder().deadline(DEADLINE).connect(&url).await;
    let store = connect(format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/3")).await.unwrap();
    let limiter = limiter(&store);
    assert_eq!(granted(&limiter, "a").await, LIMIT);

    let mut connection = sentinel.primary().unwrap().connect().unwrap();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap(), Value::Integer(0));
    connection.command(&["SELECT", "3"]).unwrap();
    assert_eq!(connection.command(&["DBSIZE"]).unwrap(), Value::Integer(2));

    for (url, says) in [
        (format!("redis+sentinel://:wrong@{hosts}/tidegate"), "check user and password"),
        (format!("redis+sentinel://{hosts}/tidegate"), "check user and password"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}/nobody"), "the sentinels know no primary"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}"), "is missing"),
        (format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/x"), "not a number"),
    ] {
        let refused = connect(url).await.unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }

    // The sentinel that is named first may be gone.
    sentinel.sentinels()[0].kill();
    let store = connect(format!("redis+sentinel://:s3cret%2F%40@{hosts}/tidegate/3")).await.unwrap();
    assert_eq!(granted(&self::limiter(&store), "a").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_primary_changes_and_dies_under_load() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password("secret")).unwrap();
    let url = format!("redis+sentinel://:secret@{}/tidegate/1", hosts(&sentinel));
    let store = RedisStore::builder().deadline(DEADLINE).connect(&url).await.unwrap();
    let limiter = Arc::new(limiter(&store));
    for _ in 0..4 {
        assert!(limiter.decide("quiet", 1).await.is_allowed());
    }
    let first = sentinel.primary().unwrap();
    until("the replica knows", || replica_knows(first)).unwrap();

    let load = Load::start(&limiter);
    load.goes_on().await;
    block_in_place(|| sentinel.fail_over()).unwrap();
    recovered(&store, &limiter).await;
    load.goes_on().await;
    let second = sentinel.primary().unwrap();
    assert_ne!(second.port(), first.port());
    assert_eq!(connected_clients(first), 0, "nobody is with the old primary any more");
    assert!(connected_clients(second) > 0);

    block_in_place(|| {
        until("the replica knows", || replica_follows(first))?;
        sentinel.kill_primary()?;
        sentinel.wait_until_ok()
    })
    .unwrap();
    recovered(&store, &limiter).await;
    load.goes_on().await;
    let degraded = limiter.degraded_count();
    assert!(degraded > 0, "nothing was decided in between");
    load.goes_on().await;
    assert_eq!(limiter.degraded_count(), degraded, "the store decides again, and goes on");
    load.stop().await;

    assert_eq!(sentinel.primary().unwrap().port(), first.port());
    assert_eq!(granted(&limiter, "quiet").await, LIMIT - 4);
    assert_eq!(store.trouble(), None);
    assert!(store.outages() >= 2);
}

/// A primary that is made a replica keeps its clients: it says `READONLY` to who decides there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_turned_replica_is_left() {
    let sentinel = RedisSentinel::start().unwrap();
    let url = format!("redis+sentinel://{}/tidegate", hosts(&sentinel));
    let store = RedisStore::builder().deadline(DEADLINE).connect(&url).await.unwrap();
    let limiter = limiter(&store);
    for _ in 0..4 {
        assert!(limiter.decide("quiet", 1).await.is_allowed());
    }
    let old = sentinel.primary().unwrap();
    until("the replica knows", || replica_knows(old)).unwrap();
    let new = block_in_place(|| {
        until("the sentinels make the replica the primary", || {
            let new = sentinel.primary()?;
            if new.port() == old.port() {
                sentinel.sentinels()[0].command(&["SENTINEL", "FAILOVER", "tidegate"])?;
                return Err("they began".into());
            }
            Ok(new)
        })
    })
    .unwrap();
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]).unwrap();

    // What is denied is not written, so a denial would not show where it comes from.
    let mut admitted = 4;
    soon("decisions come from the new primary", async || {
        let decision = limiter.decide("quiet", 1).await;
        admitted += u64::from(decision.is_allowed());
        !decision.is_degraded()
    })
    .await;
    assert_eq!(admitted + granted(&limiter, "quiet").await, LIMIT);
    let degraded = limiter.degraded_count();
    assert_eq!(granted(&limiter, "other").await, LIMIT);
    assert_eq!(limiter.degraded_count(), degraded);
    let key = "tidegate:{rule:other}:1";
    assert_eq!(new.command(&["EXISTS", key]).unwrap(), Value::Integer(1));
}

/// Many tasks that ask for many keys.
struct Load {
    tasks: JoinSet<()>,
    answers: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
}

impl Load {
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
        Self { tasks, answers, is_over }
    }

    async fn goes_on(&self) {
        let now = self.answers.load(Ordering::Relaxed);
        soon("everybody goes on", async || self.answers.load(Ordering::Relaxed) > now + 1_000).await;
    }

    async fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.tasks.join_all().await;
    }
}

fn hosts(sentinel: &RedisSentinel) -> String {
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|sentinel| sentinel.address().to_string()).collect();
    hosts.join(",")
}

/// Without the store it denies, so that all that is admitted was counted there.
fn limiter(store: &RedisStore) -> Limiter {
    let builder = Limiter::builder().name("rule").store(store.clone()).failure_mode(FailureMode::Closed);
    builder.build(&*format!("{LIMIT} per 52w")).unwrap()
}

async fn granted(limiter: &Limiter, key: &str) -> u64 {
    let mut granted = 0;
    for _ in 0..2 * LIMIT {
        granted += u64::from(limiter.decide(key, 1).await.is_allowed());
    }
    granted
}

async fn recovered(store: &RedisStore, limiter: &Limiter) {
    soon("the store decides", async || {
        store.trouble().is_none() && !limiter.key("quiet").peek(1).await.is_degraded()
    })
    .await;
}

/// Whether all that was written has reached the replica.
fn replica_knows(primary: &RedisServer) -> Result<(), String> {
    let role = primary.command(&["ROLE"])?;
    let [_, Value::Integer(written), replicas] = role.items() else { return Err(format!("{role}")) };
    let known = replicas.items().first().and_then(|replica| replica.items()[2].text()?.parse::<i64>().ok());
    if known >= Some(*written) { Ok(()) } else { Err(format!("{known:?} of {written}")) }
}

/// Whether a replica has a link to its primary.
fn replica_follows(replica: &RedisServer) -> Result<(), String> {
    let role = replica.command(&["ROLE"])?;
    match role.items() {
        [_, _, _, link, ..] if *link == "connected" => Ok(()),
        _ => Err(format!("{role}")),
    }
}

/// Clients that run scripts.
fn connected_clients(server: &RedisServer) -> usize {
    let told = server.command(&["CLIENT", "LIST", "TYPE", "normal"]).unwrap();
    told.text().unwrap().lines().filter(|line| line.contains("cmd=evalsha")).count()
}
