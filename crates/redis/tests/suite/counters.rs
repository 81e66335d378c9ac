//! Counters that other programs increment too.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use crate::common::{LONG_DEADLINE, connect_store, count_calls, integer_reply};
use std::{fs, time::Duration};
use tidegate_limiter::{CounterStore, Increment, StoreError};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{RedisCluster, RedisSentinel, RedisServer, RespValue};

fn increment(key: &str, count: i64) -> Increment {
    Increment { key: key.to_owned(), count, ttl: Duration::from_secs(3_600) }
}

#[tokio::test]
async fn counters_include_increments_of_others() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    server.command(&["INCRBY", "shop_user_alice_0", "4"]).unwrap();

    let before = count_calls(&server, "incrby");
    let additions = vec![
        increment("shop_user_alice_0", 1),
        increment("shop_user_bob_0", 3),
        increment("shop_user_alice_0", 2),
    ];
    assert_eq!(store.add(additions).await.unwrap(), [5, 3, 7]);
    assert_eq!((count_calls(&server, "incrby") - before, count_calls(&server, "expire")), (3, 3));
    assert_eq!(server.command(&["GET", "shop_user_alice_0"]).unwrap().text(), Some("7"));
    let ttl = integer_reply(&server, &["TTL", "shop_user_alice_0"]);
    assert!((1..=3_600).contains(&ttl), "{ttl}");

    assert_eq!(
        store.add(vec![increment("shop_user_alice_0", 0), increment("shop_user_bob_0", -2)]).await.unwrap(),
        [7, 1]
    );
    store.delete(vec!["shop_user_alice_0".to_owned(), "missing".to_owned()]).await.unwrap();
    assert_eq!(store.add(vec![increment("shop_user_alice_0", 1)]).await.unwrap(), [1]);
    assert_eq!(store.add(Vec::new()).await.unwrap(), [0_i64; 0]);
}

#[tokio::test]
async fn wrong_type_and_dead_server_are_errors() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    server.command(&["LPUSH", "list", "a"]).unwrap();
    let rejected = store.add(vec![increment("list", 1)]).await.unwrap_err();
    assert!(matches!(rejected, StoreError::ErrorReply(_)), "{rejected:?}");
    assert_eq!(store.add(vec![increment("number", 1)]).await.unwrap(), [1]);
    server.kill();
    let unavailable = store.add(vec![increment("number", 1)]).await.unwrap_err();
    assert!(matches!(unavailable, StoreError::Unavailable(_)), "{unavailable:?}");
    assert!(store.last_error().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_counters_follow_their_slots() {
    let cluster = RedisCluster::start().unwrap();
    let url = cluster.url().replace("redis://", "redis+cluster://");
    let store = RedisStore::builder().deadline(LONG_DEADLINE).connect(&url).await.unwrap();
    let keys: Vec<String> = (0..60).map(|number| format!("shop_user_{number}_1606925760")).collect();
    let primary = |key: &str| cluster.primary_of(RedisCluster::slot_of(key)).unwrap();
    for (index, key) in keys.iter().enumerate() {
        primary(key).command(&["INCRBY", key, &index.to_string()]).unwrap();
    }
    let add = || keys.iter().map(|key| increment(key, 1)).collect::<Vec<_>>();
    let expected: Vec<i64> = (1..=60).collect();
    assert_eq!(store.add(add()).await.unwrap(), expected, "in the order of the increments");

    // A slot that migrates takes its counters along, and no increment counts twice.
    let moved = RedisCluster::slot_of(&keys[7]);
    let target = cluster.primaries_without(moved).unwrap()[0];
    tokio::task::block_in_place(|| cluster.migrate_slot(moved, target)).unwrap();
    let expected: Vec<i64> = (2..=61).collect();
    assert_eq!(store.add(add()).await.unwrap(), expected);
    assert_eq!(target.command(&["GET", &keys[7]]).unwrap().text(), Some("9"));
    let ttl = target.command(&["TTL", &keys[7]]).unwrap();
    assert!(matches!(ttl, RespValue::Integer(1..=3_600)), "{ttl:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_counters_are_on_primary() {
    let sentinel = RedisSentinel::start().unwrap();
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|sentinel| sentinel.address().to_string()).collect();
    let url = format!("redis+sentinel://{}/{}", hosts.join(","), sentinel.master_name());
    let store = RedisStore::builder().deadline(LONG_DEADLINE).connect(&url).await.unwrap();
    assert_eq!(store.add(vec![increment("shop_user_alice_0", 2)]).await.unwrap(), [2]);
    let reply = sentinel.primary().unwrap().command(&["GET", "shop_user_alice_0"]).unwrap();
    assert_eq!(reply.text(), Some("2"));
}

#[tokio::test]
async fn client_certificate_is_presented() {
    let server = RedisServer::builder().tls().config("tls-auth-clients", "yes").start().unwrap();
    let files = server.certificates().unwrap();
    let read = |path| fs::read(path).unwrap();
    let url = server.tls_url().unwrap();
    let builder = || RedisStore::builder().deadline(LONG_DEADLINE).tls_authority(&read(&files.authority));
    builder().connect(&url).await.unwrap_err();

    let store =
        builder().tls_identity(&read(&files.certificate), &read(&files.key)).connect(&url).await.unwrap();
    assert_eq!(store.add(vec![increment("number", 1)]).await.unwrap(), [1]);

    let text = builder().tls_identity(&read(&files.certificate), b"no key").connect(&url).await.unwrap_err();
    assert!(text.to_string().contains("-----BEGIN PRIVATE KEY-----"), "{text}");
}
