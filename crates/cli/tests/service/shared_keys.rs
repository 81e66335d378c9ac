//! The rate limit service and envoyproxy/ratelimit on the same Redis.

use crate::common::ServiceProcess;
use std::fs;
use tidegate_testkit::servers::{RedisServer, wait_until};

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: burst, rate_limit: { unit: second, requests_per_unit: 1000 } }
";

fn redis_keys(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let mut keys: Vec<_> = keys.items().iter().filter_map(|key| key.text().map(str::to_owned)).collect();
    keys.sort();
    keys
}

#[test]
fn fleets_share_counters() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let (usual, seconds) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let url = |server: &RedisServer| server.url().replace("redis://", "");
    let service = ServiceProcess::start(
        folder.path(),
        &[
            ("TIDEGATE_COUNTING", "shared"),
            ("REDIS_URL", &url(&usual)),
            ("REDIS_PERSECOND", "true"),
            ("REDIS_PERSECOND_URL", &url(&seconds)),
            ("CACHE_KEY_PREFIX", "team:"),
            ("EXPIRATION_JITTER_MAX_SECONDS", "0"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1048576"),
        ],
    );
    service.wait_until_healthy();
    let ask = || service.check(&[("user", "alice")]);
    assert_eq!(ask(), "200");
    let all = redis_keys(&usual);
    let [key] = all.as_slice() else { panic!("{all:?}") };
    let start = key.strip_prefix("team:shop_user_alice_").unwrap();
    assert_eq!(start.parse::<u64>().unwrap() % 31_536_000, 0);
    let ttl = usual.command(&["TTL", key]).unwrap().integer().unwrap();
    assert!((31_535_000..=31_536_000).contains(&ttl), "{ttl}");

    // Increments of another process.
    usual.command(&["INCRBY", key, "2"]).unwrap();
    assert_eq!([ask(), ask()], ["429", "429"]);
    assert_eq!(
        usual.command(&["GET", key]).unwrap().text(),
        Some("4"),
        "the cached key is not counted again"
    );
    let stats = service.get_page("stats");
    assert!(stats.contains("shop.user.over_limit_with_local_cache: 1\n"), "{stats}");

    assert_eq!(service.check(&[("burst", "b")]), "200");
    let all = redis_keys(&seconds);
    assert!(all.iter().all(|key| key.starts_with("team:shop_burst_b_")), "{all:?}");
    assert_eq!(
        seconds.command(&["INFO", "commandstats"]).unwrap().text().unwrap().matches("incrby").count(),
        1
    );
}

#[test]
fn own_keys_use_the_prefix() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let redis = RedisServer::start().unwrap();
    let address = redis.url().replace("redis://", "");
    let service =
        ServiceProcess::start(folder.path(), &[("REDIS_URL", &address), ("CACHE_KEY_PREFIX", "team:")]);
    // The store may time out on a busy machine.
    wait_until("it decides", || match &*service.check(&[("user", "alice"), ("never", "mind")]) {
        "200" => Ok(()),
        status => Err(status.to_owned()),
    })
    .unwrap();
    wait_until("it counts", || match &*service.check(&[("user", "alice")]) {
        "200" | "429" => Ok(()),
        status => Err(status.to_owned()),
    })
    .unwrap();
    let all = redis_keys(&redis);
    assert!(!all.is_empty() && all.iter().all(|key| key.starts_with("team:tidegate:")), "{all:?}");
}
