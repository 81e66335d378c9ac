//! Rare cases in which the service matches envoyproxy/ratelimit.

use crate::common::{
    TEST_TIMEOUT, decide, limit_of_amount, memory_service, named_limit, parse_request, per_unit,
    quota_mode_limit, shadow_limit, test_config, verdict_text,
};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidegate_limiter::CounterStore;
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorAmount, DescriptorFile, DescriptorLimit, DescriptorSet, DomainMerge,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{
    DescriptorService, DomainRequest, OverLimitCounting, QuotaMode, ResponseMetadataMode, ServiceSettings,
    SharedKeys, WindowClock,
};
use tidegate_testkit::servers::RedisServer;

fn test_limits() -> Vec<(&'static str, DescriptorLimit)> {
    vec![
        ("user", per_unit(1, CalendarUnit::Year)),
        ("quota", quota_mode_limit(per_unit(1, CalendarUnit::Year))),
        ("watched", shadow_limit(quota_mode_limit(per_unit(0, CalendarUnit::Year)))),
        ("free", quota_mode_limit(limit_of_amount(DescriptorAmount::Unlimited))),
        ("old", named_limit("old", &[], limit_of_amount(DescriptorAmount::Unlimited))),
        ("new", named_limit("new", &["old"], per_unit(9, CalendarUnit::Year))),
    ]
}

#[tokio::test]
async fn quota_mode_matches_the_reference() {
    let every = ServiceSettings { quota_mode: QuotaMode::All, ..ServiceSettings::default() };
    let table = [
        // With `QUOTA_MODE`, an unmatched descriptor belongs to the quota group and has capacity.
        (every.clone(), "user=a x2", "OVER: OVER 0/1"),
        (every.clone(), "user=a x2, unknown=key", "OK: OVER 0/1, -"),
        (every, "user=a x2, anonymous=b x2 @1/DAY", "OVER: OVER 0/1, OVER 0/1"),
        (ServiceSettings::default(), "quota=a x2, unknown=key", "OVER: OVER 0/1, -"),
        // An unlimited descriptor never belongs to the group.
        (ServiceSettings::default(), "quota=a x2, free=a", "OVER: OVER 0/1, OK unlimited"),
        // A descriptor in shadow mode belongs to the group and is never over its limit.
        (ServiceSettings::default(), "quota=a x2, watched=a", "OK: OVER 0/1, OK 0/0"),
        (ServiceSettings::default(), "new=a, old=a", "OK: OK 8/9, OK unlimited"),
    ];
    for (settings, request, expected) in table {
        let (service, _manual_clock) = memory_service(settings, test_config(&test_limits()));
        assert_eq!(decide(&service, request).await, expected, "{request}");
    }
}

/// Services that count in memory, in Redis, and with shared keys.
async fn start_services(server: &RedisServer, settings: ServiceSettings) -> Vec<DescriptorService> {
    let limits =
        test_config(&[("user", per_unit(3, CalendarUnit::Year)), ("path", per_unit(9, CalendarUnit::Year))]);
    let connect = || async {
        Arc::new(RedisStore::builder().deadline(TEST_TIMEOUT).connect(&server.url()).await.unwrap())
    };
    let counter_store: Arc<dyn CounterStore> = connect().await;
    let shared = SharedKeys {
        counter_store,
        per_second: None,
        prefix: String::new(),
        jitter: Duration::ZERO,
        window_time: WindowClock::System,
    };
    let all = [
        settings.clone(),
        ServiceSettings { store: Some(connect().await), ..settings.clone() },
        ServiceSettings { shared_keys: Some(shared), ..settings },
    ];
    let make = |settings| {
        let service = DescriptorService::new(settings).unwrap();
        service.load(limits.clone());
        service
    };
    all.into_iter().map(make).collect()
}

#[tokio::test]
async fn stop_increment_matches_the_reference() {
    let server = RedisServer::start().unwrap();
    let settings = ServiceSettings {
        over_limit_counting: OverLimitCounting::CountOverLimit,
        ..ServiceSettings::default()
    };
    for service in start_services(&server, settings.clone()).await {
        for (request, expected) in [
            ("user=a x2", "OK: OK 1/3"),
            // Compared with the count before the request, neither goes over.
            ("user=a, user=a", "OVER: OK 0/3, OVER 0/3"),
            ("user=a x0", "OVER: OVER 0/3"),
            ("user=b x3, path=/", "OK: OK 0/3, OK 8/9"),
            ("user=b x5, path=/ x5", "OVER: OVER 0/3, OK 8/9"),
            ("path=/ x0", "OK: OK 8/9"),
        ] {
            assert_eq!(decide(&service, request).await, expected, "{request}");
        }
        let stats = service.stats();
        // Skipped hits still count in the metrics.
        for line in ["shop.path.total_hits: 6", "shop.path.within_limit: 6", "shop.user.total_hits: 12"] {
            assert!(stats.contains(line), "{line} is not in\n{stats}");
        }
    }
    let settings = ServiceSettings { local_cache: Some(1 << 20), ..settings };
    server.command(&["FLUSHALL"]).unwrap();
    for service in start_services(&server, settings).await {
        for (request, expected) in [
            ("user=c x4", "OVER: OVER 0/3"),
            // The cached key is over its limit, so no other key is counted.
            ("user=c, path=/, path=/", "OVER: OVER 0/3, OK 9/9, OK 9/9"),
            ("path=/", "OK: OK 8/9"),
        ] {
            assert_eq!(decide(&service, request).await, expected, "{request}");
        }
    }
}

fn parse_config(text: &str) -> Arc<DescriptorSet> {
    let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
    Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap())
}

#[tokio::test]
async fn statistics_match_the_reference() {
    let service = DescriptorService::new(ServiceSettings::default()).unwrap();
    service.load(parse_config(
        "
domain: shop
descriptors:
  - { key: watched, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: a, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: b, value_to_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
",
    ));
    for request in ["watched=it x10", "anonymous=bob @5/YEAR", "anonymous= @5/YEAR", "a=", "a=1", "b=", "b=1"]
    {
        service.decide(parse_request(request)).await.unwrap();
    }
    let unknown = DomainRequest { domain: "other".to_owned(), ..parse_request("a=1, b=2, c=3") };
    service.decide(unknown).await.unwrap();
    let stats = service.stats();
    for line in [
        "shop.watched.shadow_mode: 7",
        "shop.watched.over_limit: 7",
        "shop.anonymous_bob.total_hits: 1",
        "shop.anonymous.total_hits: 1",
        "shop.a_.total_hits: 1",
        "shop.a_1.total_hits: 1",
        "shop.b.total_hits: 1",
        "shop.b_1.total_hits: 1",
        "other.domain_not_found: 3",
    ] {
        let line = format!("ratelimit.service.rate_limit.{line}");
        assert!(stats.lines().any(|known| known == line), "{line} is not in\n{stats}");
    }
    assert!(!stats.contains("override"), "{stats}");
}

#[tokio::test]
async fn dynamic_metadata_matches_the_reference() {
    let settings = ServiceSettings { metadata: ResponseMetadataMode::Request, ..ServiceSettings::default() };
    let service = DescriptorService::new(settings).unwrap();
    service.load(parse_config("
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 }, metadata: { plan: { name: free, size: 1 } } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 3 }, metadata: { plan: { name: any, tier: 2 }, x: 1 } }
  - { key: open, rate_limit: { unlimited: true }, metadata: { y: 1 } }
"));
    let verdict = service.decide(parse_request("user=a, path=/, open=1, anonymous=b @0/DAY")).await.unwrap();
    let metadata = verdict.metadata.unwrap();
    assert_eq!(metadata["metadata"], json!({ "plan": { "name": "free", "size": 1, "tier": 2 }, "x": 1 }));
    assert_eq!(metadata["descriptors"][3], json!({ "entries": ["anonymous=b"], "limit": "unit:DAY" }));
    let unknown = DomainRequest { domain: "other".to_owned(), ..parse_request("user=a") };
    let verdict = service.decide(unknown).await.unwrap();
    assert_eq!(verdict_text(&verdict), "OK: -");
    let expected = json!({ "domain": "other", "descriptors": [{ "entries": ["user=a"] }] });
    assert_eq!(verdict.metadata, Some(expected));
}
