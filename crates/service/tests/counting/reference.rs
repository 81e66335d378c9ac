//! What envoyproxy/ratelimit does in cases that are rare, and this does too.

use crate::stage::{AMPLE, ask, decide, files, in_memory, named, of, per, said, shadow, together};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidegate_limiter::CounterStore;
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorAmount, DescriptorFile, DescriptorLimit, DescriptorSet, DomainMerge,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{
    DescriptorService, DomainAsk, QuotaMode, ServiceSettings, SharedKeys, TellMetadata, WhenOver, WindowTime,
};
use tidegate_testkit::servers::RedisServer;

fn limits() -> Vec<(&'static str, DescriptorLimit)> {
    vec![
        ("user", per(1, CalendarUnit::Year)),
        ("quota", together(per(1, CalendarUnit::Year))),
        ("watched", shadow(together(per(0, CalendarUnit::Year)))),
        ("free", together(of(DescriptorAmount::Unlimited))),
        ("old", named("old", &[], of(DescriptorAmount::Unlimited))),
        ("new", named("new", &["old"], per(9, CalendarUnit::Year))),
    ]
}

#[tokio::test]
async fn quota_mode_decides_as_the_reference() {
    let every = ServiceSettings { quota_mode: QuotaMode::Every, ..ServiceSettings::default() };
    let table = [
        // An unmatched descriptor is one of the group where all are, and has room.
        (every.clone(), "user=a x2", "OVER: OVER 0/1"),
        (every.clone(), "user=a x2, nobody=knows", "OK: OVER 0/1, -"),
        (every, "user=a x2, guest=b x2 @1/DAY", "OVER: OVER 0/1, OVER 0/1"),
        (ServiceSettings::default(), "quota=a x2, nobody=knows", "OVER: OVER 0/1, -"),
        // An unlimited one never is.
        (ServiceSettings::default(), "quota=a x2, free=a", "OVER: OVER 0/1, OK unlimited"),
        // One in shadow mode is, and is never over.
        (ServiceSettings::default(), "quota=a x2, watched=a", "OK: OVER 0/1, OK 0/0"),
        (ServiceSettings::default(), "new=a, old=a", "OK: OK 8/9, OK unlimited"),
    ];
    for (settings, request, expected) in table {
        let (service, _hand) = in_memory(settings, files(&limits()));
        assert_eq!(decide(&service, request).await, expected, "{request}");
    }
}

/// In memory, in Redis, and under the keys of a fleet.
async fn services(server: &RedisServer, settings: ServiceSettings) -> Vec<DescriptorService> {
    let limits = files(&[("user", per(3, CalendarUnit::Year)), ("path", per(9, CalendarUnit::Year))]);
    let connect =
        || async { Arc::new(RedisStore::builder().deadline(AMPLE).connect(&server.url()).await.unwrap()) };
    let tally: Arc<dyn CounterStore> = connect().await;
    let shared = SharedKeys {
        tally,
        per_second: None,
        prefix: String::new(),
        jitter: Duration::ZERO,
        time: WindowTime::Wall,
    };
    let all = [
        settings.clone(),
        ServiceSettings { store: Some(connect().await), ..settings.clone() },
        ServiceSettings { shared: Some(shared), ..settings },
    ];
    let make = |settings| {
        let service = DescriptorService::new(settings).unwrap();
        service.load(limits.clone());
        service
    };
    all.into_iter().map(make).collect()
}

#[tokio::test]
async fn stop_increment_counts_as_the_reference() {
    let server = RedisServer::start().unwrap();
    let settings = ServiceSettings { when_over: WhenOver::CountOver, ..ServiceSettings::default() };
    for service in services(&server, settings.clone()).await {
        for (request, expected) in [
            ("user=a x2", "OK: OK 1/3"),
            // Neither goes over by what there is before both.
            ("user=a, user=a", "OVER: OK 0/3, OVER 0/3"),
            ("user=a x0", "OVER: OVER 0/3"),
            ("user=b x3, path=/", "OK: OK 0/3, OK 8/9"),
            ("user=b x5, path=/ x5", "OVER: OVER 0/3, OK 8/9"),
            ("path=/ x0", "OK: OK 8/9"),
        ] {
            assert_eq!(decide(&service, request).await, expected, "{request}");
        }
        let stats = service.stats();
        // The others count for operators as if they had been counted.
        for line in ["shop.path.total_hits: 6", "shop.path.within_limit: 6", "shop.user.total_hits: 12"] {
            assert!(stats.contains(line), "{line} is not in\n{stats}");
        }
    }
    let settings = ServiceSettings { local_cache: Some(1 << 20), ..settings };
    server.command(&["FLUSHALL"]).unwrap();
    for service in services(&server, settings).await {
        for (request, expected) in [
            ("user=c x4", "OVER: OVER 0/3"),
            // It is known to be over: nothing else is counted.
            ("user=c, path=/, path=/", "OVER: OVER 0/3, OK 9/9, OK 9/9"),
            ("path=/", "OK: OK 8/9"),
        ] {
            assert_eq!(decide(&service, request).await, expected, "{request}");
        }
    }
}

fn set(text: &str) -> Arc<DescriptorSet> {
    let file = DescriptorFile { name: "shop.yaml".to_owned(), text: text.to_owned() };
    Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap())
}

#[tokio::test]
async fn statistics_are_those_of_the_reference() {
    let service = DescriptorService::new(ServiceSettings::default()).unwrap();
    service.load(set("
domain: shop
descriptors:
  - { key: watched, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: a, detailed_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
  - { key: b, value_to_metric: true, rate_limit: { unit: year, requests_per_unit: 9 } }
"));
    for request in ["watched=it x10", "guest=bob @5/YEAR", "guest= @5/YEAR", "a=", "a=1", "b=", "b=1"] {
        service.decide(ask(request)).await.unwrap();
    }
    let unknown = DomainAsk { domain: "other".to_owned(), ..ask("a=1, b=2, c=3") };
    service.decide(unknown).await.unwrap();
    let stats = service.stats();
    for line in [
        "shop.watched.shadow_mode: 7",
        "shop.watched.over_limit: 7",
        "shop.guest_bob.total_hits: 1",
        "shop.guest.total_hits: 1",
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
async fn dynamic_metadata_is_that_of_the_reference() {
    let settings = ServiceSettings { metadata: TellMetadata::Asked, ..ServiceSettings::default() };
    let service = DescriptorService::new(settings).unwrap();
    service.load(set("
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 }, metadata: { plan: { name: free, size: 1 } } }
  - { key: path, rate_limit: { unit: year, requests_per_unit: 3 }, metadata: { plan: { name: any, tier: 2 }, x: 1 } }
  - { key: open, rate_limit: { unlimited: true }, metadata: { y: 1 } }
"));
    let verdict = service.decide(ask("user=a, path=/, open=1, guest=b @0/DAY")).await.unwrap();
    let metadata = verdict.metadata.unwrap();
    assert_eq!(metadata["metadata"], json!({ "plan": { "name": "free", "size": 1, "tier": 2 }, "x": 1 }));
    assert_eq!(metadata["descriptors"][3], json!({ "entries": ["guest=b"], "limit": "unit:DAY" }));
    let unknown = DomainAsk { domain: "other".to_owned(), ..ask("user=a") };
    let verdict = service.decide(unknown).await.unwrap();
    assert_eq!(said(&verdict), "OK: -");
    let expected = json!({ "domain": "other", "descriptors": [{ "entries": ["user=a"] }] });
    assert_eq!(verdict.metadata, Some(expected));
}
