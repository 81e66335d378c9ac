//! The store in a cluster: failovers and slot migrations.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::poll_until;
use std::{
    collections::BTreeMap,
    future::poll_fn,
    io::ErrorKind,
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tidegate_core::{CarryOver, Demand, Quota};
use tidegate_limiter::{
    FailureMode, Limiter, Store,
    store::{
        KeyRef, PermitMode, QuotaSelection, StoreCheck, StoreDecision, StoreLimit, StoreReply, StoreRequest,
    },
};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisCluster, RedisServer, RedisServerState, RespValue, wait_until};
use tokio::{
    runtime::Handle,
    task::{JoinSet, block_in_place},
};

/// Long enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_primary_decides_and_calls_span_slots() {
    const KEYS: usize = 300;
    let cluster = RedisCluster::start().unwrap();
    let limiter = Arc::new(build_limiter(&connect(&cluster).await, "3 per 52w"));
    let mut tasks = JoinSet::new();
    for index in 0..4 * KEYS {
        let limiter = limiter.clone();
        let _task = tasks.spawn(async move {
            let decision = limiter.decide(&format!("key-{}", index % KEYS), 1).await;
            (index % KEYS, u64::from(decision.is_allowed()))
        });
    }
    let mut admitted = [0; KEYS];
    tasks.join_all().await.into_iter().for_each(|(key, count)| admitted[key] += count);
    assert_eq!(admitted, [3; KEYS]);
    assert_eq!(limiter.degraded_count(), 0);

    let mut calls = 0;
    for primary in &cluster.nodes()[..3] {
        assert!(primary.command(&["DBSIZE"]).unwrap().integer().unwrap() > 0, "a primary has no keys");
        calls += count_calls(primary, "evalsha");
    }
    assert!(calls < 4 * KEYS as u64, "{calls} calls for {} decisions", 4 * KEYS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multi_node_request_is_all_or_nothing() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    for (index, quota) in [
        "4 per 52w",
        "4 per 52w leaky-bucket queue 3 nodelay",
        "4 per 52w fixed-window",
        "4 per 52w sliding-window",
        "4 per 52w sliding-strict 52",
        "4 per 52w sliding-log",
    ]
    .into_iter()
    .enumerate()
    {
        let limit = build_limit(&format!("rule-{index}"), quota);
        let key_refs = keys_on_each_primary(&cluster, &store, &limit);
        let [_, _, full] = &key_refs;
        assert!(is_granted(&decide(&store, std::slice::from_ref(full), Demand::new(4)).await[0]), "{quota}");

        for order in [[0, 1, 2], [0, 2, 1], [2, 1, 0]] {
            let ordered = order.map(|index| key_refs[index].clone());
            let answers = decide(&store, &ordered, Demand::new(2)).await;
            assert_eq!(answers.len(), 3, "{quota}: one decision per check");
            for (index, answer) in order.iter().zip(&answers) {
                assert_eq!(is_granted(answer), *index != 2, "{quota}, {order:?}");
                assert!(
                    answer.results.iter().all(|result| result.receipt.cost == 0),
                    "a receipt is left after the refund"
                );
            }
            assert_eq!(remaining(&store, &key_refs).await, [4, 4, 0], "{quota}, {order:?}");
        }

        execute(&store, StoreRequest::Reset(full.clone())).await;
        assert!(decide(&store, &key_refs, Demand::new(3)).await.iter().all(is_granted), "{quota}");
        assert_eq!(remaining(&store, &key_refs).await, [1, 1, 1], "{quota}");
        let peeked = decide(&store, &key_refs, Demand::peek(2)).await;
        assert!(peeked.len() == 3 && !peeked.iter().any(is_granted), "{quota}");
        assert_eq!(remaining(&store, &key_refs).await, [1, 1, 1], "{quota}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_multi_node_slots_are_released() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let quotas = vec![Quota::concurrency_with_lease(2, Duration::from_secs(600)).unwrap()];
    let limit = Arc::new(StoreLimit::new("downloads", quotas, QuotaSelection::All, CarryOver::default()));
    let key_refs = keys_on_each_primary(&cluster, &store, &limit);
    let [_, _, full] = &key_refs;
    for _ in 0..2 {
        assert!(is_granted(&decide(&store, std::slice::from_ref(full), Demand::new(1)).await[0]));
    }
    for _ in 0..5 {
        assert!(!decide(&store, &key_refs, Demand::new(1)).await.iter().all(is_granted));
    }
    assert_eq!(remaining(&store, &key_refs).await, [2, 2, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn canceled_multi_node_call_is_refunded() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limit = build_limit("rule", "1000 per 52w fixed-window");
    let key_refs = keys_on_each_primary(&cluster, &store, &limit);
    assert_eq!(remaining(&store, &key_refs).await, [1000; 3]);
    let before = Handle::current().metrics().num_alive_tasks();
    let (mut canceled, mut completed) = (0, 0);
    while canceled < 200 {
        let checks = key_refs.iter().map(|key_ref| build_check(key_ref, Demand::new(1))).collect();
        let mut request = store.execute(StoreRequest::Decide(checks));
        // All nodes may reply during the first poll.
        match poll_fn(|context| Poll::Ready(request.as_mut().poll(context))).await {
            Poll::Pending => canceled += 1,
            Poll::Ready(_) => completed += 1,
        }
        drop(request);
        tokio::task::yield_now().await;
    }
    poll_until("all calls have ended", async || Handle::current().metrics().num_alive_tasks() <= before)
        .await;
    assert_eq!(remaining(&store, &key_refs).await, [1000 - completed; 3]);
}

/// A primary replies before its replica has the write, so a failover may lose the latest charges and a key may get its
/// limit again. An idle key, or a key on another node, gets exactly its remaining tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_failover_under_load_keeps_limits() {
    const KEYS: usize = 96;
    const LIMIT: u64 = 10;
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limiter = Arc::new(build_limiter(&store, "10 per 52w"));
    let slot_of =
        |key: &str| RedisCluster::slot_of(store.key(&key_ref(&build_limit("rule", "10 per 52w"), key)));
    for _ in 0..4 {
        assert!(limiter.decide("quiet", 1).await.is_allowed());
    }
    let victim = cluster.primary_of(slot_of("quiet")).unwrap();
    let on_victim = |key: &str| cluster.primary_of(slot_of(key)).unwrap().port() == victim.port();
    let keys: Vec<_> = (0..KEYS).map(|index| format!("key-{index}")).collect();
    let may_repeat: Vec<_> = keys.iter().map(|key| on_victim(key)).collect();
    wait_until("the replica has all writes", || check_replicated(victim)).unwrap();
    let tasks_before = Handle::current().metrics().num_alive_tasks();

    let counts = || -> Arc<Vec<AtomicU64>> { Arc::new((0..KEYS).map(|_| AtomicU64::new(0)).collect()) };
    let (admitted, unknown) = (counts(), counts());
    let (answers, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut tasks = JoinSet::new();
    for task in 0..64 {
        let (limiter, answers, is_over) = (limiter.clone(), answers.clone(), is_over.clone());
        let (admitted, unknown) = (admitted.clone(), unknown.clone());
        let _task = tasks.spawn(async move {
            for index in task.. {
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                let key = index % KEYS;
                let decision = limiter.decide(&format!("key-{key}"), 1).await;
                if decision.is_allowed() {
                    admitted[key].fetch_add(1, Ordering::Relaxed);
                }
                // The server may have charged it and died before its reply.
                if decision.is_degraded() {
                    unknown[key].fetch_add(1, Ordering::Relaxed);
                }
                answers.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
    }
    poll_until("the load has started", async || answers.load(Ordering::Relaxed) > 1_000).await;
    block_in_place(|| {
        victim.kill();
        cluster.wait_until_ok()
    })
    .unwrap();
    poll_until("all keys are decided", async || are_all_decided(&limiter, &keys).await).await;
    let before = answers.load(Ordering::Relaxed);
    poll_until("the load continues", async || answers.load(Ordering::Relaxed) > before + 1_000).await;
    is_over.store(true, Ordering::Relaxed);
    tasks.join_all().await;

    assert!(limiter.degraded_count() > 0, "no decision during the outage");
    assert!(store.outages() > 0);
    for (((key, admitted), unknown), may_repeat) in keys.iter().zip(&*admitted).zip(&*unknown).zip(may_repeat)
    {
        let (admitted, unknown) = (admitted.load(Ordering::Relaxed), unknown.load(Ordering::Relaxed));
        let most = if may_repeat { 2 * LIMIT } else { LIMIT };
        let least = LIMIT.saturating_sub(unknown);
        assert!((least..=most).contains(&admitted), "{key}: {admitted} of {LIMIT}, {unknown} unknown");
    }
    assert_eq!(count_granted(&limiter, "quiet", 20).await, LIMIT - 4);
    assert_eq!(store.last_error(), None);

    // The dead node is no longer in the map, and no task tries to reconnect to it.
    poll_until("no task is left", async || Handle::current().metrics().num_alive_tasks() <= tasks_before)
        .await;
    let listener = TcpListener::bind(victim.address()).unwrap();
    listener.set_nonblocking(true).unwrap();
    let degraded = limiter.degraded_count();
    for key in &keys {
        assert!(!limiter.decide(key, 1).await.is_allowed());
    }
    assert_eq!(limiter.degraded_count(), degraded);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

/// The store recovers although no request uses a key of the dead node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_recovers_without_traffic() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limiter = build_limiter(&store, "10 per 52w");
    limiter.decide("a", 1).await;
    let slot = RedisCluster::slot_of(store.key(&key_ref(&build_limit("rule", "10 per 52w"), "a")));
    cluster.kill_primary_of(slot).unwrap();
    limiter.decide("a", 1).await;
    assert!(store.last_error().is_some());
    block_in_place(|| cluster.wait_until_ok()).unwrap();
    poll_until("the store has no error", async || store.last_error().is_none()).await;
    assert_eq!(store.outages(), 1, "outages of removed nodes count");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_under_load_keeps_counts() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limit = build_limit("rule", "40 per 52w");
    let limiter = Arc::new(build_limiter(&store, "40 per 52w"));
    let [moved, stays, new, newest] = keys_in_one_slot(&store, &limit);
    let slot = RedisCluster::slot_of(store.key(&key_ref(&limit, &moved)));
    let to = cluster.primaries_without(slot).unwrap()[0];
    let keys = [moved.clone(), stays.clone(), new.clone(), newest];
    let mut counts = BTreeMap::new();
    take_concurrently(&limiter, &[moved.clone(), stays.clone()], 10, &mut counts).await;

    // During the migration: a key that moved, one that did not, and a new one.
    let migration = cluster.begin_migration(slot, to).unwrap();
    migration.move_key(&store.key(&key_ref(&limit, &moved))).unwrap();
    take_concurrently(&limiter, &keys[..3], 10, &mut counts).await;
    let both = [key_ref(&limit, &moved), key_ref(&limit, &stays), key_ref(&limit, &new)];
    assert!(decide(&store, &both, Demand::new(2)).await.iter().all(is_granted));
    keys[..3].iter().for_each(|key| *counts.entry(key.clone()).or_default() += 2);
    assert_eq!(limiter.degraded_count(), 0);

    // The migration finishes under load.
    let load = tokio::spawn({
        let (limiter, keys) = (limiter.clone(), keys.clone());
        async move {
            let mut counts = BTreeMap::new();
            for _ in 0..10 {
                take_concurrently(&limiter, &keys, 1, &mut counts).await;
            }
            counts
        }
    });
    block_in_place(|| migration.finish()).unwrap();
    for (key, count) in load.await.unwrap() {
        *counts.entry(key).or_default() += count;
    }
    assert_eq!(cluster.primary_of(slot).unwrap().port(), to.port());
    for key in &keys {
        let rest = count_granted(&limiter, key, 50).await;
        assert_eq!(counts[key] + rest, 40, "{key}: {} and {rest}", counts[key]);
    }
    assert_eq!(limiter.degraded_count(), 0);
    assert_eq!(store.outages(), 0);
}

/// A node without slots joins the cluster and gets a slot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_migration_to_new_node_keeps_counts() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limit = build_limit("rule", "40 per 52w");
    let limiter = Arc::new(build_limiter(&store, "40 per 52w"));
    let [moved, stays, new] = keys_in_one_slot(&store, &limit);
    let slot = RedisCluster::slot_of(store.key(&key_ref(&limit, &moved)));
    let mut counts = BTreeMap::new();
    take_concurrently(&limiter, &[moved.clone(), stays.clone()], 5, &mut counts).await;

    let newcomer = &cluster.nodes()[5];
    newcomer.command(&["CLUSTER", "RESET", "SOFT"]).unwrap();
    newcomer.command(&["CLUSTER", "MEET", "127.0.0.1", &cluster.nodes()[0].port().to_string()]).unwrap();
    let migration = block_in_place(|| {
        cluster.wait_until_ok()?;
        wait_until("all nodes know the new one", || cluster.begin_migration(slot, newcomer))
    })
    .unwrap();
    migration.move_key(&store.key(&key_ref(&limit, &moved))).unwrap();
    take_concurrently(&limiter, &[moved.clone(), stays.clone(), new.clone()], 10, &mut counts).await;
    block_in_place(|| migration.finish()).unwrap();
    for key in [&moved, &stays, &new] {
        assert_eq!(counts[key] + count_granted(&limiter, key, 50).await, 40, "{key}");
    }
    assert_eq!((limiter.degraded_count(), store.outages()), (0, 0));
}

/// A process that starts during a migration can announce its quota.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quota_is_announced_during_slot_migration() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let quota: Quota = "7 per 52w".parse().unwrap();
    let announced = format!("tidegate:quota:rule:{:04x}", quota.tag());
    let slot = RedisCluster::slot_of(&announced);
    let to = cluster.primaries_without(slot).unwrap()[0];
    let migration = cluster.begin_migration(slot, to).unwrap();
    let limiter = build_limiter(&store, "7 per 52w");
    assert!(limiter.decide("a", 1).await.is_allowed());
    assert_eq!(limiter.degraded_count(), 0);
    block_in_place(|| migration.finish()).unwrap();
    assert_eq!(to.command(&["GET", &announced]).unwrap(), quota.to_string().as_str());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn finished_migrations_are_discovered() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limit = build_limit("rule", "10 per 52w");
    let limiter = build_limiter(&store, "10 per 52w");
    let slot_of = |key: &str| RedisCluster::slot_of(store.key(&key_ref(&limit, key)));
    let owner = |key: &str| cluster.primary_of(slot_of(key)).unwrap().port();
    let keys: Vec<_> = (0..60).map(|index| format!("key-{index}")).collect();
    let neighbours: Vec<_> = keys.iter().filter(|key| owner(key) == owner(&keys[0])).take(8).collect();
    for key in &neighbours {
        assert_eq!(count_granted(&limiter, key, 4).await, 4);
    }
    for key in &neighbours[..4] {
        let slot = slot_of(key);
        cluster.migrate_slot(slot, cluster.primaries_without(slot).unwrap()[0]).unwrap();
    }

    // In one request: keys that moved, and keys that share a call with them.
    let key_refs: Vec<_> = neighbours.iter().map(|key| key_ref(&limit, key)).collect();
    assert!(decide(&store, &key_refs, Demand::new(1)).await.iter().all(is_granted));
    for key in &neighbours {
        assert_eq!(count_granted(&limiter, key, 20).await, 5, "{key}");
    }
    assert_eq!((limiter.degraded_count(), store.outages()), (0, 0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_restart_keeps_counts() {
    let cluster =
        RedisCluster::start_with(&RedisServer::builder().password("s3cret/@").append_only()).unwrap();
    let store = connect(&cluster).await;
    let limiter = build_limiter(&store, "10 per 52w");
    let keys: Vec<_> = (0..12).map(|index| format!("key-{index}")).collect();
    for key in &keys {
        assert_eq!(count_granted(&limiter, key, 4).await, 4);
    }
    block_in_place(|| cluster.restart_all()).unwrap();
    poll_until("all keys are decided", async || are_all_decided(&limiter, &keys).await).await;
    for key in &keys {
        assert_eq!(count_granted(&limiter, key, 20).await, 6, "{key}");
    }
    poll_until("the store has no error", async || store.last_error().is_none()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_opens_before_cluster() {
    let cluster = RedisCluster::start().unwrap();
    cluster.nodes().iter().for_each(RedisServer::kill);
    let error = RedisStore::connect(&cluster_url(&cluster)).await.unwrap_err().to_string();
    assert!(error.contains("check that a server is running"), "{error}");

    let store = RedisStore::builder().deadline(DEADLINE).open(&cluster_url(&cluster)).unwrap();
    let limiter = build_limiter(&store, "10 per 52w");
    assert!(limiter.decide("a", 1).await.is_degraded());
    let cause = store.last_error().unwrap();
    assert!(cause.contains("Connection refused"), "{cause}");
    assert!(cause.contains("check that a server is running"), "{cause}");

    block_in_place(|| {
        cluster.nodes().iter().try_for_each(RedisServer::restart)?;
        cluster.wait_until_ok()
    })
    .unwrap();
    let keys: Vec<_> = (0..12).map(|index| format!("key-{index}")).collect();
    poll_until("all keys are decided", async || are_all_decided(&limiter, &keys).await).await;
    poll_until("the store has no error", async || store.last_error().is_none()).await;
}

/// While a node is unavailable, `CLUSTER SLOTS` is sent at most ten times a second, regardless of the load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_queries_are_rate_limited() {
    let cluster = RedisCluster::start().unwrap();
    let store = connect(&cluster).await;
    let limiter = build_limiter(&store, "10 per 52w");
    limiter.decide("a", 1).await;
    let slot = RedisCluster::slot_of(store.key(&key_ref(&build_limit("rule", "10 per 52w"), "a")));
    let slot_queries = || -> u64 {
        let running = cluster.nodes().iter().filter(|node| node.state() == RedisServerState::Running);
        running.map(|node| count_calls(node, "cluster|slots")).sum()
    };
    cluster.kill_primary_of(slot).unwrap();
    let before = slot_queries();
    poll_until("the replica decides", async || {
        for _ in 0..100 {
            limiter.decide("a", 1).await;
            tokio::task::yield_now().await;
        }
        !limiter.decide("a", 1).await.is_degraded()
    })
    .await;
    let (decisions, queries) = (limiter.degraded_count(), slot_queries() - before);
    assert!(decisions > 1_000, "{decisions}");
    assert!(queries < 400, "{queries} queries in {decisions} decisions");
}

fn cluster_url(cluster: &RedisCluster) -> String {
    let urls = cluster.urls();
    let login =
        urls[0].strip_prefix("redis://").unwrap().rsplit_once('@').map(|(login, _)| format!("{login}@"));
    let hosts: Vec<_> = cluster.nodes().iter().map(|node| node.address().to_string()).collect();
    format!("redis+cluster://{}{}", login.unwrap_or_default(), hosts.join(","))
}

async fn connect(cluster: &RedisCluster) -> RedisStore {
    RedisStore::builder().deadline(DEADLINE).connect(&cluster_url(cluster)).await.unwrap()
}

/// Fails closed, so that the store has counted everything that is allowed.
fn build_limiter(store: &RedisStore, quota: &str) -> Limiter {
    Limiter::builder()
        .name("rule")
        .store(store.clone())
        .failure_mode(FailureMode::Closed)
        .build(quota)
        .unwrap()
}

fn build_limit(name: &str, quota: &str) -> Arc<StoreLimit> {
    Arc::new(StoreLimit::new(name, vec![quota.parse().unwrap()], QuotaSelection::All, CarryOver::default()))
}

fn key_ref(limit: &Arc<StoreLimit>, key: &str) -> KeyRef {
    KeyRef { limit: limit.clone(), key: key.to_owned(), tier: 0 }
}

fn build_check(key_ref: &KeyRef, demand: Demand) -> StoreCheck {
    StoreCheck { key_ref: key_ref.clone(), demand, permit_mode: PermitMode::Acquire, receipt: false }
}

async fn execute(store: &RedisStore, request: StoreRequest) -> StoreReply {
    store.execute(request).await.unwrap()
}

async fn decide(store: &RedisStore, key_refs: &[KeyRef], demand: Demand) -> Vec<StoreDecision> {
    let checks = key_refs.iter().map(|key_ref| build_check(key_ref, demand)).collect();
    match execute(store, StoreRequest::Decide(checks)).await {
        StoreReply::Decided(answers) => answers,
        other => panic!("{other:?}"),
    }
}

/// The remaining tokens of each key.
async fn remaining<const N: usize>(store: &RedisStore, key_refs: &[KeyRef; N]) -> [u64; N] {
    let mut left = [0; N];
    for (key_ref, left) in key_refs.iter().zip(&mut left) {
        let limit = key_ref.limit.quotas()[0].limit();
        while *left < limit {
            let next = if limit < 10 { *left + 1 } else { limit };
            let answer = decide(store, std::slice::from_ref(key_ref), Demand::peek(next)).await;
            if !is_granted(&answer[0]) {
                break;
            }
            *left = next;
        }
    }
    left
}

fn is_granted(answer: &StoreDecision) -> bool {
    answer.results.iter().all(|result| result.decision.is_granted())
}

/// A key on each primary.
fn keys_on_each_primary(cluster: &RedisCluster, store: &RedisStore, limit: &Arc<StoreLimit>) -> [KeyRef; 3] {
    let owner =
        |key_ref: &KeyRef| cluster.primary_of(RedisCluster::slot_of(store.key(key_ref))).unwrap().port();
    let mut found: BTreeMap<u16, KeyRef> = BTreeMap::new();
    for index in 0.. {
        let key_ref = key_ref(limit, &format!("key-{index}"));
        found.entry(owner(&key_ref)).or_insert(key_ref);
        if found.len() == 3 {
            break;
        }
    }
    found.into_values().collect::<Vec<_>>().try_into().unwrap()
}

/// Keys that share a slot.
fn keys_in_one_slot<const N: usize>(store: &RedisStore, limit: &Arc<StoreLimit>) -> [String; N] {
    let slot_of = |key: &str| RedisCluster::slot_of(store.key(&key_ref(limit, key)));
    let keys = (0..).map(|index| format!("key-{index}"));
    let slot = slot_of("key-0");
    keys.filter(|key| slot_of(key) == slot).take(N).collect::<Vec<_>>().try_into().unwrap()
}

async fn count_granted(limiter: &Limiter, key: &str, tries: u64) -> u64 {
    let mut granted = 0;
    for _ in 0..tries {
        granted += u64::from(limiter.decide(key, 1).await.is_allowed());
    }
    granted
}

/// Takes `count` tokens of each key concurrently; all must be granted.
async fn take_concurrently(
    limiter: &Arc<Limiter>,
    keys: &[String],
    count: u64,
    taken: &mut BTreeMap<String, u64>,
) {
    let mut tasks = JoinSet::new();
    for key in keys {
        for _ in 0..count {
            let (limiter, key) = (limiter.clone(), key.clone());
            let _task = tasks.spawn(async move { (limiter.decide(&key, 1).await, key) });
        }
    }
    for (decision, key) in tasks.join_all().await {
        assert!(decision.is_allowed(), "{key}: {decision:?}");
        *taken.entry(key).or_default() += 1;
    }
}

async fn are_all_decided(limiter: &Limiter, keys: &[String]) -> bool {
    for key in keys {
        if limiter.key(key).peek(1).await.is_degraded() {
            return false;
        }
    }
    true
}

/// The number of calls of a command in a server.
fn count_calls(server: &RedisServer, command: &str) -> u64 {
    let info = server.command(&["INFO", "commandstats"]).unwrap();
    let name = format!("cmdstat_{command}:calls=");
    let line = info.text().unwrap().lines().find_map(|line| line.strip_prefix(&name));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Whether the replica has all writes.
fn check_replicated(primary: &RedisServer) -> Result<(), String> {
    let role = primary.command(&["ROLE"])?;
    let [_, RespValue::Integer(written), replicas] = role.items() else { return Err(format!("{role}")) };
    let known = replicas.items().first().and_then(|replica| replica.items()[2].text()?.parse::<i64>().ok());
    if known == Some(*written) { Ok(()) } else { Err(format!("{known:?} of {written}")) }
}
