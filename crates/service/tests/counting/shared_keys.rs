//! Counting in the keys of envoyproxy/ratelimit.

use crate::common::{
    TEST_TIMEOUT, decide, parse_request, per_unit, redis_service, settings_with_counting, test_config,
    verdict_text, with_quotas,
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{
    Clock, CounterStore, FailureMode, Increment, ManualClock, Store, StoreError, store::StoreFuture,
};
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorEntry, DescriptorFile, DescriptorSet, DomainMerge,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{
    ConfigLookup, CountingMode, DecisionError, DescriptorService, DomainRequest, LimitOverride,
    OverLimitCounting, RequestDescriptor, ServiceSettings, SharedKeys, WindowClock,
};
use tidegate_testkit::servers::{RedisServer, RespValue};

/// Five seconds into a minute, as in the documentation of envoyproxy/ratelimit.
const START_SECONDS: u64 = 1_606_925_765;

fn manual_clock() -> (Clock, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(START_SECONDS));
    (clock, manual_clock)
}

async fn connect_store(server: &RedisServer) -> Arc<RedisStore> {
    Arc::new(RedisStore::builder().deadline(TEST_TIMEOUT).connect(&server.url()).await.unwrap())
}

fn shared_keys(counter_store: Arc<dyn CounterStore>) -> SharedKeys {
    let (prefix, jitter, window_time) = (String::new(), Duration::ZERO, WindowClock::System);
    SharedKeys { counter_store, per_second: None, prefix, jitter, window_time }
}

fn start_service(
    clock: &Clock,
    shared: SharedKeys,
    settings: ServiceSettings,
    files: Arc<dyn ConfigLookup>,
) -> DescriptorService {
    let shared = SharedKeys { window_time: WindowClock::Custom(clock.clone()), ..shared };
    let settings = ServiceSettings {
        shared_keys: Some(shared),
        clock: clock.clone(),
        deadline: TEST_TIMEOUT,
        ..settings
    };
    let service = DescriptorService::new(settings).unwrap();
    service.load(files);
    service
}

fn get_value(server: &RedisServer, key: &str) -> Option<String> {
    server.command(&["GET", key]).unwrap().text().map(str::to_owned)
}

fn all_keys(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    let mut keys: Vec<_> = keys.items().iter().filter_map(RespValue::text).map(str::to_owned).collect();
    keys.sort();
    keys
}

/// Keeps counters in memory and records all increments.
#[derive(Debug, Default)]
struct RecordingCounterStore {
    counters: Mutex<BTreeMap<String, i64>>,
    increments: Mutex<Vec<Increment>>,
}

impl CounterStore for RecordingCounterStore {
    fn add(&self, increments: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        let mut counters = self.counters.lock().unwrap();
        let sums = increments.iter().map(|increment| {
            let counter = counters.entry(increment.key.clone()).or_default();
            *counter += increment.count;
            *counter
        });
        let sums = Ok(sums.collect());
        self.increments.lock().unwrap().extend(increments);
        Box::pin(async { sums })
    }

    fn delete(&self, keys: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        self.counters.lock().unwrap().retain(|key, _| !keys.contains(key));
        Box::pin(async { Ok(()) })
    }
}

/// A store that is always unavailable.
#[derive(Debug)]
struct UnavailableCounterStore;

impl CounterStore for UnavailableCounterStore {
    fn add(&self, _: Vec<Increment>) -> StoreFuture<Result<Vec<i64>, StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("gone".to_owned())) })
    }

    fn delete(&self, _: Vec<String>) -> StoreFuture<Result<(), StoreError>> {
        Box::pin(async { Err(StoreError::Unavailable("gone".to_owned())) })
    }
}

fn domain_request(domain: &str, entries: &[(&str, &str)]) -> DomainRequest {
    let entry =
        |(key, value): &(&str, &str)| DescriptorEntry { key: (*key).to_owned(), value: (*value).to_owned() };
    let entries = entries.iter().map(entry).collect();
    let descriptors = vec![RequestDescriptor { entries, limit: None, hits: None }];
    DomainRequest { domain: domain.to_owned(), descriptors, hits: 0, deadline: None }
}

/// Entries, the expected key, and its TTL in seconds.
type KeyCase<'a> = (&'a [(&'a str, &'a str)], &'a str, u64);

#[tokio::test]
async fn shared_keys_and_expirations_match_the_reference() {
    let text = "
domain: messaging
descriptors:
  - { key: foo, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: s, rate_limit: { unit: second, requests_per_unit: 5 } }
  - { key: h, rate_limit: { unit: hour, requests_per_unit: 5 } }
  - { key: d, rate_limit: { unit: day, requests_per_unit: 5 } }
  - { key: w, rate_limit: { unit: week, requests_per_unit: 5 } }
  - { key: mo, rate_limit: { unit: month, requests_per_unit: 5 } }
  - { key: y, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: path, value: files/*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - { key: each, value: files/*, rate_limit: { unit: minute, requests_per_unit: 5 } }
  - key: a_b
    descriptors:
      - { key: c, value: d, rate_limit: { unit: minute, requests_per_unit: 5 } }
";
    let set = DescriptorSet::read(
        &[DescriptorFile { name: "a.yaml".to_owned(), text: text.to_owned() }],
        DomainMerge::Reject,
    );
    let set: Arc<dyn ConfigLookup> = Arc::new(set.unwrap());
    let store = Arc::new(RecordingCounterStore::default());
    let (clock, _manual_clock) = manual_clock();
    let plain = start_service(&clock, shared_keys(store.clone()), ServiceSettings::default(), set.clone());
    let table: [KeyCase<'_>; 11] = [
        (&[("foo", "jjdjdls")], "messaging_foo_jjdjdls_1606925760", 60),
        (&[("s", "1")], "messaging_s_1_1606925765", 1),
        (&[("h", "1")], "messaging_h_1_1606924800", 3_600),
        (&[("d", "1")], "messaging_d_1_1606867200", 86_400),
        // From Thursday, the 26th of November 2020.
        (&[("w", "1")], "messaging_w_1_1606348800", 604_800),
        (&[("mo", "1")], "messaging_mo_1_1604448000", 2_592_000),
        (&[("y", "1")], "messaging_y_1_1576800000", 31_536_000),
        (&[("path", "files/a.pdf")], "messaging_path_files/*_1606925760", 60),
        (&[("each", "files/a.pdf")], "messaging_each_files/a.pdf_1606925760", 60),
        (&[("a_b", "x y"), ("c", "d")], "messaging_a_b_x y_c_d_1606925760", 60),
        (&[("foo", "")], "messaging_foo__1606925760", 60),
    ];
    for (entries, key, seconds) in table {
        plain.decide(domain_request("messaging", entries)).await.unwrap();
        let increments: Vec<_> = store.increments.lock().unwrap().drain(..).collect();
        let ttl = Duration::from_secs(seconds);
        assert_eq!(increments, [Increment { key: key.to_owned(), count: 1, ttl }]);
    }

    // A prefix, and jitter of the TTL.
    let shared = SharedKeys {
        prefix: "team:".to_owned(),
        jitter: Duration::from_secs(300),
        ..shared_keys(store.clone())
    };
    let prefixed = start_service(&clock, shared, ServiceSettings::default(), set);
    for _ in 0..100 {
        let mut request = domain_request("messaging", &[("foo", "bar")]);
        request.descriptors[0].limit = Some(LimitOverride { requests: 7, unit: CalendarUnit::Hour });
        request.hits = 3;
        prefixed.decide(request).await.unwrap();
    }
    let increments = store.increments.lock().unwrap();
    assert!(
        increments.iter().all(|it| it.key == "team:messaging_foo_bar_1606924800" && it.count == 3),
        "{increments:?}"
    );
    let ttls: Vec<_> = increments.iter().map(|it| it.ttl.as_secs()).collect();
    assert!(ttls.iter().all(|ttl| (3_600..3_900).contains(ttl)), "{ttls:?}");
    assert!(ttls.iter().any(|ttl| *ttl != ttls[0]), "keys do not expire at once");
}

#[tokio::test]
async fn counting_continues_from_another_fleet() {
    let server = RedisServer::start().unwrap();
    let (clock, manual_clock) = manual_clock();
    let files = test_config(&[
        ("user", per_unit(5, CalendarUnit::Minute)),
        ("path", per_unit(2, CalendarUnit::Hour)),
        ("own", with_quotas(&["1 per 52w"])),
    ]);
    let store = connect_store(&server).await;
    let settings =
        ServiceSettings { store: Some(store.clone() as Arc<dyn Store>), ..ServiceSettings::default() };
    let service = start_service(&clock, shared_keys(store), settings, files);
    let increment_externally = |key: &str, hits: &str| drop(server.command(&["INCRBY", key, hits]).unwrap());
    increment_externally("shop_user_alice_1606925760", "3");

    // (request, verdict, counters of alice and of the path)
    let table = [
        ("user=alice", "OK: OK 1/5", "4", None),
        ("user=alice x0", "OK: OK 1/5", "4", None),
        ("user=alice, path=a", "OK: OK 0/5, OK 1/2", "5", Some("1")),
        ("user=alice x0", "OK: OK 0/5", "5", Some("1")),
        // Hits over the limit count too, and so do the other descriptors of the request.
        ("user=alice, path=a", "OVER: OVER 0/5, OK 0/2", "6", Some("2")),
        ("user=alice x5", "OVER: OVER 0/5", "11", Some("2")),
        ("user=bob, user=bob", "OK: OK 4/5, OK 3/5", "11", Some("2")),
    ];
    for (request, expected, alice, path) in table {
        assert_eq!(decide(&service, request).await, expected, "{request}");
        assert_eq!(get_value(&server, "shop_user_alice_1606925760").as_deref(), Some(alice), "{request}");
        assert_eq!(get_value(&server, "shop_path_a_1606924800").as_deref(), path, "{request}");
    }
    let verdict = service.decide(parse_request("user=carol, path=b")).await.unwrap();
    let resets: Vec<_> = verdict.statuses.iter().map(|status| status.reset.unwrap().as_secs()).collect();
    assert_eq!(resets, [55, 2_635]);

    // Quotas of Tidegate are counted as usual.
    assert_eq!(decide(&service, "own=x").await, "OK: OK 0/1");
    assert_eq!(decide(&service, "own=x").await, "OVER: OVER 0/1");

    manual_clock.advance(Duration::from_secs(60));
    assert_eq!(decide(&service, "user=alice").await, "OK: OK 4/5");
    assert_eq!(get_value(&server, "shop_user_alice_1606925820").as_deref(), Some("1"));
}

#[tokio::test]
async fn within_limit_keys_are_not_counted_when_over_limit() {
    let server = RedisServer::start().unwrap();
    let (clock, _manual_clock) = manual_clock();
    let settings = ServiceSettings {
        over_limit_counting: OverLimitCounting::CountOverLimit,
        ..ServiceSettings::default()
    };
    let files = test_config(&[
        ("user", per_unit(2, CalendarUnit::Minute)),
        ("path", per_unit(5, CalendarUnit::Minute)),
    ]);
    let service = start_service(&clock, shared_keys(connect_store(&server).await), settings, files);
    for expected in
        ["OK: OK 1/2, OK 4/5", "OK: OK 0/2, OK 3/5", "OVER: OVER 0/2, OK 3/5", "OVER: OVER 0/2, OK 3/5"]
    {
        assert_eq!(decide(&service, "user=alice, path=a").await, expected);
    }
    assert_eq!(get_value(&server, "shop_user_alice_1606925760").as_deref(), Some("4"));
    assert_eq!(get_value(&server, "shop_path_a_1606925760").as_deref(), Some("2"));
}

#[tokio::test]
async fn over_limit_key_is_cached_until_its_window_ends() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server).await;
    for is_shared in [true, false] {
        let (clock, manual_clock) = manual_clock();
        let base = ServiceSettings { local_cache: Some(1 << 20), ..ServiceSettings::default() };
        let files = test_config(&[("user", per_unit(2, CalendarUnit::Minute))]);
        let service = if is_shared {
            start_service(&clock, shared_keys(store.clone()), base, files)
        } else {
            // The store has another clock, so the test can only check that the store gets no further requests.
            let base = ServiceSettings { clock: clock.clone(), ..base };
            redis_service(
                &server,
                base,
                crate::common::test_config(&[("user", per_unit(2, CalendarUnit::Year))]),
            )
            .await
        };
        let calls = || server.command(&["INFO", "commandstats"]).unwrap().text().unwrap().to_owned();
        let counted = |text: &str| {
            let lines = text
                .lines()
                .filter(|line| line.starts_with("cmdstat_incrby:") || line.starts_with("cmdstat_evalsha:"));
            lines.map(|line| line.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap()).sum::<u64>()
        };
        for expected in ["OK 1", "OK 0", "OVER 0"] {
            assert_eq!(
                decide(&service, "user=alice").await.split(": ").nth(1),
                Some(&*format!("{expected}/2"))
            );
        }
        let before = counted(&calls());
        for _ in 0..5 {
            assert_eq!(decide(&service, "user=alice x2").await, "OVER: OVER 0/2");
        }
        assert_eq!(counted(&calls()), before, "no request to the store");
        let stats = service.stats();
        for line in [
            "ratelimit.service.rate_limit.shop.user.over_limit_with_local_cache: 10",
            "ratelimit.service.rate_limit.shop.user.over_limit: 11",
            "ratelimit.service.rate_limit.shop.user.total_hits: 13",
            "ratelimit.localcache.hitCount: 5",
            "ratelimit.localcache.missCount: 3",
            "ratelimit.localcache.entryCount: 1",
        ] {
            assert!(stats.contains(line), "{line} in {stats}");
        }
        assert!(service.prometheus().contains("ratelimit_localcache_hitCount 5\n"));
        // A limit override with more capacity.
        assert!(decide(&service, "user=alice @9/MINUTE").await.starts_with("OK: "));
        if is_shared {
            manual_clock.advance(Duration::from_secs(55));
            assert_eq!(decide(&service, "user=alice").await, "OK: OK 1/2");
            assert_eq!(get_value(&server, "shop_user_alice_1606925760").as_deref(), Some("4"));
        }
    }
}

#[tokio::test]
async fn per_second_limits_use_their_own_store() {
    let (default, seconds) = (RedisServer::start().unwrap(), RedisServer::start().unwrap());
    let files = || {
        test_config(&[
            ("s", per_unit(2, CalendarUnit::Second)),
            ("m", per_unit(2, CalendarUnit::Minute)),
            ("q", with_quotas(&["2 per 52w"])),
        ])
    };
    let (clock, _manual_clock) = manual_clock();
    let (first, second) = (connect_store(&default).await, connect_store(&seconds).await);
    let shared = SharedKeys { per_second: Some(second.clone()), ..shared_keys(first.clone()) };
    let shared = start_service(&clock, shared, ServiceSettings::default(), files());
    assert_eq!(decide(&shared, "m=a, s=a, m=b, s=a").await, "OK: OK 1/2, OK 1/2, OK 1/2, OK 0/2");
    assert_eq!(all_keys(&default), ["shop_m_a_1606925760", "shop_m_b_1606925760"]);
    assert_eq!(all_keys(&seconds), ["shop_s_a_1606925765"]);

    for counting in [CountingMode::Reference, CountingMode::Atomic] {
        for server in [&default, &seconds] {
            server.command(&["FLUSHALL"]).unwrap();
        }
        let settings = ServiceSettings {
            store: Some(first.clone()),
            per_second: Some(second.clone()),
            deadline: TEST_TIMEOUT,
            ..settings_with_counting(counting)
        };
        let own = DescriptorService::new(settings).unwrap();
        own.load(files());
        assert_eq!(
            decide(&own, "m=a, s=a, m=b, q=a").await,
            "OK: OK 1/2, OK 1/2, OK 1/2, OK 1/2",
            "{counting:?}"
        );
        let is_second = |key: &String| key.contains("second") || key.contains("descriptors.shop.s");
        assert!(!all_keys(&default).iter().any(is_second), "{:?}", all_keys(&default));
        assert!(all_keys(&seconds).iter().all(is_second), "{:?}", all_keys(&seconds));
        assert!(!all_keys(&default).is_empty());
    }
}

#[tokio::test]
async fn unavailable_shared_store_is_handled_as_declared() {
    let (clock, _manual_clock) = manual_clock();
    for when_over in [OverLimitCounting::CountAll, OverLimitCounting::CountOverLimit] {
        let service = |outage| {
            let settings =
                ServiceSettings { outage, over_limit_counting: when_over, ..ServiceSettings::default() };
            start_service(
                &clock,
                shared_keys(Arc::new(UnavailableCounterStore)),
                settings,
                test_config(&[("user", per_unit(6, CalendarUnit::Year))]),
            )
        };
        let closed = service(FailureMode::Closed);
        let error = closed.decide(parse_request("user=alice")).await.unwrap_err();
        assert!(matches!(error, DecisionError::Unavailable(_)), "{error:?}");
        assert!(closed.stats().contains("ratelimit.service.store_failures: 1"), "{}", closed.stats());
        closed.reset(&parse_request("user=alice")).await.unwrap_err();

        assert_eq!(decide(&service(FailureMode::Open), "user=alice x9").await, "OK: OK 6/6");

        let local = service(FailureMode::Local { nodes: 2 });
        let verdicts = [decide(&local, "user=alice x3").await, decide(&local, "user=alice").await];
        assert_eq!(verdicts, ["OK: OK 0/6", "OVER: OVER 0/6"]);
    }
}

#[tokio::test]
async fn reservations_settle_in_shared_counters() {
    let server = RedisServer::start().unwrap();
    let (clock, _manual_clock) = manual_clock();
    let files = test_config(&[
        ("user", per_unit(5, CalendarUnit::Minute)),
        ("path", per_unit(9, CalendarUnit::Minute)),
    ]);
    let service =
        start_service(&clock, shared_keys(connect_store(&server).await), ServiceSettings::default(), files);
    let counts = || {
        let of = |key| get_value(&server, key).unwrap_or_default();
        [of("shop_user_alice_1606925760"), of("shop_path_a_1606925760")]
    };

    let (verdict, reserved) = service.reserve(parse_request("user=alice x4, path=a x4")).await.unwrap();
    assert_eq!(verdict_text(&verdict), "OK: OK 1/5, OK 5/9");
    assert_eq!(counts(), ["4", "4"]);
    // A denied reservation is refunded, unlike the hits of a denied request.
    let (verdict, none) = service.reserve(parse_request("user=alice x2, path=a x2")).await.unwrap();
    assert_eq!(verdict_text(&verdict), "OVER: OVER 0/5, OK 5/9");
    assert!(none.is_none());
    assert_eq!(counts(), ["4", "4"]);
    reserved.unwrap().commit(1).await;
    assert_eq!(counts(), ["1", "1"]);
    let (_, reserved) = service.reserve(parse_request("user=alice x4, path=a x4")).await.unwrap();
    reserved.unwrap().cancel().await;
    assert_eq!(counts(), ["1", "1"]);

    assert_eq!(service.reset(&parse_request("user=alice, path=b, unknown=x")).await.unwrap(), 2);
    assert_eq!(counts(), ["", "1"]);
    assert_eq!(verdict_text(&service.peek(parse_request("user=alice x3")).await.unwrap()), "OK: OK 5/5");
}
