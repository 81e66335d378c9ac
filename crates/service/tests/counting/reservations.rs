//! Operations that envoyproxy/ratelimit does not have: peek, reserve, reset and prefetch.

use crate::common::{
    TEST_TIMEOUT, decide, memory_service, parse_request, per_unit, quota_mode_limit, redis_service,
    settings_with_counting, test_config, verdict_text, with_quotas,
};
use std::time::Duration;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorLimit};
use tidegate_service::descriptors::{
    CountingMode, DecisionError, DescriptorService, DomainRequest, ServiceSettings,
};
use tidegate_testkit::servers::RedisServer;

fn test_limits() -> Vec<(&'static str, DescriptorLimit)> {
    vec![
        ("user", per_unit(5, CalendarUnit::Year)),
        ("path", per_unit(9, CalendarUnit::Year)),
        ("quota", with_quotas(&["5 per 52w", "6 per 104w sliding-window"])),
        ("some", quota_mode_limit(with_quotas(&["2 per 52w"]))),
    ]
}

/// Services in memory and in Redis, in each counting mode.
async fn start_services(server: &RedisServer) -> Vec<(String, DescriptorService)> {
    let mut all = Vec::new();
    for counting in [CountingMode::Reference, CountingMode::Atomic] {
        server.command(&["FLUSHALL"]).unwrap();
        all.push((
            format!("{counting:?} in memory"),
            memory_service(settings_with_counting(counting), test_config(&test_limits())).0,
        ));
        all.push((
            format!("{counting:?} in Redis"),
            redis_service(server, settings_with_counting(counting), test_config(&test_limits())).await,
        ));
    }
    all
}

#[tokio::test]
async fn reserved_hits_are_committed_cancelled_or_stay_charged() {
    let server = RedisServer::start().unwrap();
    for (name, service) in start_services(&server).await {
        server.command(&["FLUSHALL"]).unwrap();
        let left =
            async || verdict_text(&service.peek(parse_request("user=a, path=a, quota=a")).await.unwrap());

        let (verdict, reserved) =
            service.reserve(parse_request("user=a x3, path=a x3, quota=a x3")).await.unwrap();
        assert_eq!(verdict_text(&verdict), "OK: OK 2/5, OK 6/9, OK 2/5", "{name}");
        assert_eq!(left().await, "OK: OK 2/5, OK 6/9, OK 2/5", "{name}");
        // All or nothing, in every counting mode.
        for denied in ["user=a x3, path=a x3, quota=a", "path=a, quota=a x3, user=a"] {
            let (verdict, none) = service.reserve(parse_request(denied)).await.unwrap();
            assert!(verdict_text(&verdict).starts_with("OVER: "), "{name}");
            assert!(none.is_none(), "{name}");
            assert_eq!(left().await, "OK: OK 2/5, OK 6/9, OK 2/5", "{name} after {denied}");
        }
        reserved.unwrap().commit(1).await;
        assert_eq!(left().await, "OK: OK 4/5, OK 8/9, OK 4/5", "{name}");

        let (_, reserved) = service.reserve(parse_request("user=a x4, quota=a x4")).await.unwrap();
        assert_eq!(left().await, "OK: OK 0/5, OK 8/9, OK 0/5", "{name}");
        reserved.unwrap().cancel().await;
        assert_eq!(left().await, "OK: OK 4/5, OK 8/9, OK 4/5", "{name}");

        let (_, reserved) = service.reserve(parse_request("user=a x2, quota=a x2, some=a")).await.unwrap();
        drop(reserved.unwrap());
        assert_eq!(left().await, "OK: OK 2/5, OK 8/9, OK 2/5", "{name}: a dropped reservation stays charged");
        assert_eq!(
            verdict_text(&service.peek(parse_request("some=a")).await.unwrap()),
            "OK: OK 1/2",
            "{name}"
        );
    }
}

#[tokio::test]
async fn limiters_are_not_charged_if_group_denies() {
    let limits =
        [("all", quota_mode_limit(per_unit(1, CalendarUnit::Year))), ("quota", with_quotas(&["5 per 52w"]))];
    let (service, _manual_clock) = memory_service(ServiceSettings::default(), test_config(&limits));
    assert_eq!(decide(&service, "all=a, quota=a").await, "OK: OK 0/1, OK 4/5");
    assert_eq!(decide(&service, "all=a, quota=a").await, "OVER: OVER 0/1, OK 4/5");
    assert_eq!(decide(&service, "quota=a").await, "OK: OK 3/5");
    // One member of the group with capacity is enough.
    let limits = [
        ("all", quota_mode_limit(per_unit(1, CalendarUnit::Year))),
        ("quota", quota_mode_limit(with_quotas(&["2 per 52w"]))),
    ];
    let (service, _manual_clock) = memory_service(ServiceSettings::default(), test_config(&limits));
    for expected in ["OK: OK 0/1, OK 1/2", "OK: OVER 0/1, OK 0/2", "OVER: OVER 0/1, OVER 0/2"] {
        assert_eq!(decide(&service, "all=a, quota=a").await, expected);
    }
}

#[tokio::test]
async fn reset_clears_descriptor_counts() {
    let server = RedisServer::start().unwrap();
    for (name, service) in start_services(&server).await {
        server.command(&["FLUSHALL"]).unwrap();
        for _ in 0..6 {
            decide(&service, "user=a").await;
            decide(&service, "quota=a").await;
        }
        assert_eq!(decide(&service, "user=a").await, "OVER: OVER 0/5", "{name}");
        assert_eq!(decide(&service, "quota=a").await, "OVER: OVER 0/5", "{name}");
        assert_eq!(service.reset(&parse_request("user=a, unknown=x, quota=a")).await.unwrap(), 2, "{name}");
        assert_eq!(decide(&service, "user=a").await, "OK: OK 4/5", "{name}");
        assert_eq!(decide(&service, "quota=a").await, "OK: OK 4/5", "{name}");
        // A limit override has its own unit.
        decide(&service, "user=b x5 @5/DAY").await;
        assert_eq!(service.reset(&parse_request("user=b @5/DAY")).await.unwrap(), 1, "{name}");
        assert_eq!(decide(&service, "user=b @5/DAY").await, "OK: OK 4/5", "{name}");

        let strange = DomainRequest { domain: "strange".to_owned(), ..parse_request("user=a") };
        assert_eq!(service.reset(&strange).await.unwrap(), 0, "{name}");
        let empty = DomainRequest { descriptors: Vec::new(), ..parse_request("user=a") };
        assert!(matches!(service.reset(&empty).await, Err(DecisionError::Invalid(_))), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prefetched_tokens_skip_the_store_and_respect_the_limit() {
    const LIMIT: u32 = 2_000;
    let minute = Some(Duration::from_secs(60));
    let with_lease = |limit: DescriptorLimit| DescriptorLimit { lease: minute, ..limit };
    // A lease in the limit, a lease in the settings, and no lease.
    let cases = [
        ("limit", ServiceSettings::default(), with_lease(with_quotas(&["2000 per 52w"])), true),
        (
            "settings",
            ServiceSettings { lease: minute, ..settings_with_counting(CountingMode::Atomic) },
            per_unit(LIMIT, CalendarUnit::Year),
            true,
        ),
        ("none", settings_with_counting(CountingMode::Atomic), per_unit(LIMIT, CalendarUnit::Year), false),
    ];
    for (name, settings, limit, is_prefetched) in cases {
        let server = RedisServer::start().unwrap();
        let settings = ServiceSettings { deadline: TEST_TIMEOUT, ..settings };
        let service = redis_service(&server, settings, test_config(&[("user", limit)])).await;
        let mut admitted = 0;
        for _ in 0..LIMIT + 200 {
            admitted += u32::from(decide(&service, "user=a").await.starts_with("OK"));
        }
        let stats = server.command(&["INFO", "commandstats"]).unwrap();
        let line = stats
            .text()
            .unwrap()
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="))
            .unwrap();
        let calls: u32 = line.split(',').next().unwrap().parse().unwrap();
        assert_eq!(calls < LIMIT, is_prefetched, "{name}: {calls} calls");
        assert!(admitted <= LIMIT, "{name}: {admitted}");
        assert!(admitted >= LIMIT * 9 / 10, "{name}: {admitted}");
    }
}
