//! Counting scenarios, request by request: in memory and in Redis.

use crate::common::{
    TestConfig, decide, limit_of_amount, memory_service, named_limit, parse_request, per_unit,
    quota_mode_limit, redis_service, settings_with_counting, shadow_limit, test_config, verdict_text,
    with_quotas,
};
use std::sync::Arc;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorAmount};
use tidegate_service::descriptors::{
    CountingMode, DecisionError, DescriptorService, DomainRequest, GlobalEnforcement, OverLimitCounting,
    QuotaMode, ServiceSettings,
};
use tidegate_testkit::servers::RedisServer;

/// A name, settings, and requests with their verdicts.
type CountingScenario = (&'static str, ServiceSettings, &'static [(&'static str, &'static str)]);

/// Limits per year, so that no window ends during a test.
fn test_limits() -> Arc<TestConfig> {
    let year = |requests| per_unit(requests, CalendarUnit::Year);
    test_config(&[
        ("user", year(3)),
        ("path=/big", year(10)),
        ("path=/old", named_limit("old", &[], year(1))),
        ("path=/new", named_limit("new", &["old"], year(5))),
        ("path=/free", named_limit("free", &["old"], limit_of_amount(DescriptorAmount::Unlimited))),
        ("ban", year(0)),
        ("watched", shadow_limit(year(1))),
        ("model=a", quota_mode_limit(year(1))),
        ("model=b", quota_mode_limit(year(2))),
        ("model=any", quota_mode_limit(limit_of_amount(DescriptorAmount::Unlimited))),
        ("both", with_quotas(&["3 per 52w", "5 per 104w"])),
    ])
}

fn reference_settings() -> ServiceSettings {
    ServiceSettings::default()
}

fn scenarios() -> Vec<CountingScenario> {
    let atomic = || settings_with_counting(CountingMode::Atomic);
    let only_over =
        || ServiceSettings { over_limit_counting: OverLimitCounting::CountOverLimit, ..reference_settings() };
    vec![
        (
            "reference: a limit, and no limit",
            reference_settings(),
            &[
                ("user=alice", "OK: OK 2/3"),
                ("user=bob, unknown=key", "OK: OK 2/3, -"),
                ("user=alice", "OK: OK 1/3"),
                ("user=alice", "OK: OK 0/3"),
                ("user=alice", "OVER: OVER 0/3"),
                ("path=/free", "OK: OK unlimited"),
            ],
        ),
        (
            "reference: several hits, and zero hits that only peek",
            reference_settings(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice x0", "OK: OK 0/3"),
                ("user=alice x1", "OVER: OVER 0/3"),
                ("user=alice x0", "OVER: OVER 0/3"),
                ("user=bob x4", "OVER: OVER 0/3"),
                ("user=carol x0", "OK: OK 3/3"),
                ("user=dave x18446744073709551615", "OVER: OVER 0/3"),
            ],
        ),
        (
            "reference: all descriptors are counted, also of a denied request",
            reference_settings(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 9/10"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 8/10"),
                ("path=/big", "OK: OK 7/10"),
            ],
        ),
        (
            "reference: a duplicate descriptor counts twice",
            reference_settings(),
            &[("user=alice, user=alice, user=alice, user=alice", "OVER: OK 2/3, OK 1/3, OK 0/3, OVER 0/3")],
        ),
        (
            "reference: only keys over their limit are counted",
            only_over(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 10/10"),
                ("user=bob, path=/big", "OK: OK 2/3, OK 9/10"),
            ],
        ),
        (
            "a replaced limit does not apply",
            reference_settings(),
            &[
                ("path=/old, path=/new", "OK: -, OK 4/5"),
                ("path=/old, path=/free", "OK: -, OK unlimited"),
                ("path=/old", "OK: OK 0/1"),
                ("path=/old", "OVER: OVER 0/1"),
                ("path=/old, path=/new", "OK: -, OK 3/5"),
            ],
        ),
        (
            "a limit of zero is a ban",
            reference_settings(),
            &[("ban=it", "OVER: OVER 0/0"), ("ban=it x0", "OVER: OVER 0/0"), ("ban=other x0", "OK: OK 0/0")],
        ),
        (
            "a limit in shadow mode reports OK with nothing remaining",
            reference_settings(),
            &[
                ("watched=it", "OK: OK 0/1"),
                ("watched=it", "OK: OK 0/1"),
                ("watched=it, user=alice x4", "OVER: OK 0/1, OVER 0/3"),
            ],
        ),
        (
            "quota mode denies if all limits of the group are exceeded",
            reference_settings(),
            &[
                ("model=a, model=b", "OK: OK 0/1, OK 1/2"),
                ("model=a, model=b", "OK: OVER 0/1, OK 0/2"),
                ("model=a, model=b", "OVER: OVER 0/1, OVER 0/2"),
                ("model=a, model=any", "OVER: OVER 0/1, OK unlimited"),
                ("model=a", "OVER: OVER 0/1"),
                ("model=a, user=alice", "OVER: OVER 0/1, OK 2/3"),
                ("model=b x0, user=alice x9", "OVER: OVER 0/2, OVER 0/3"),
            ],
        ),
        (
            "quota mode for all",
            ServiceSettings { quota_mode: QuotaMode::All, ..reference_settings() },
            &[
                ("user=alice x4, path=/big", "OK: OVER 0/3, OK 9/10"),
                ("user=alice, path=/big x11", "OVER: OVER 0/3, OVER 0/10"),
            ],
        ),
        (
            "global shadow mode",
            ServiceSettings { enforcement: GlobalEnforcement::Shadow, ..reference_settings() },
            &[("user=alice x4, path=/big", "OK: OVER 0/3, OK 9/10")],
        ),
        (
            "a limit override shares the counter of the configured limit",
            reference_settings(),
            &[
                ("user=alice @5/YEAR", "OK: OK 4/5"),
                ("user=alice", "OK: OK 1/3"),
                ("user=alice @2/YEAR", "OVER: OVER 0/2"),
                ("user=alice @9/YEAR", "OK: OK 5/9"),
                ("user=alice @9/MONTH", "OK: OK 8/9"),
                ("unknown=it @1/YEAR, unknown=it", "OK: OK 0/1, -"),
            ],
        ),
        (
            "atomic: a denied request is not charged",
            atomic(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 10/10"),
                ("path=/big", "OK: OK 9/10"),
                ("user=bob x4", "OVER: OVER 0/3"),
                ("user=bob x0", "OK: OK 3/3"),
                ("user=bob x3", "OK: OK 0/3"),
                ("user=bob x0", "OK: OK 0/3"),
                ("ban=it", "OVER: OVER 0/0"),
                ("ban=it, user=carol", "OVER: OVER 0/0, OK 3/3"),
                ("ban=it x0", "OK: OK 0/0"),
            ],
        ),
        (
            "atomic: a limit override is refunded too",
            atomic(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, anonymous=it @5/YEAR", "OVER: OVER 0/3, OK 5/5"),
                ("anonymous=it x6 @5/YEAR", "OVER: OVER 0/5"),
                ("anonymous=it x5 @5/YEAR", "OK: OK 0/5"),
            ],
        ),
        (
            "atomic: quota mode and shadow",
            atomic(),
            &[
                ("model=a, model=b, user=alice", "OK: OK 0/1, OK 1/2, OK 2/3"),
                ("model=a, model=b, user=alice", "OK: OVER 0/1, OK 0/2, OK 1/3"),
                ("model=a, model=b, user=alice", "OVER: OVER 0/1, OVER 0/2, OK 1/3"),
                ("model=a, model=any, user=alice", "OVER: OVER 0/1, OK unlimited, OK 1/3"),
                ("watched=it, user=bob", "OK: OK 0/1, OK 2/3"),
                ("watched=it, user=bob", "OK: OK 0/1, OK 1/3"),
            ],
        ),
        (
            "several quotas are charged together, in each counting mode",
            reference_settings(),
            &[
                ("both=it x3", "OK: OK 0/3"),
                ("both=it", "OVER: OVER 0/3"),
                ("both=it, user=alice", "OVER: OVER 0/3, OK 2/3"),
                ("user=alice x3, both=other", "OVER: OVER 0/3, OK 3/3"),
                ("both=other", "OK: OK 2/3"),
            ],
        ),
    ]
}

async fn check_scenario(service: &DescriptorService, scenario: &CountingScenario, backend: &str) {
    for (number, (request, expected)) in scenario.2.iter().enumerate() {
        let verdict = decide(service, request).await;
        assert_eq!(&verdict, expected, "{} in {backend}, request {number}: {request}", scenario.0);
    }
}

#[tokio::test]
async fn scenarios_hold_in_memory() {
    for scenario in scenarios() {
        let (service, _manual_clock) = memory_service(scenario.1.clone(), test_limits());
        check_scenario(&service, &scenario, "memory").await;
    }
}

#[tokio::test]
async fn scenarios_hold_in_redis() {
    let server = RedisServer::start().unwrap();
    for scenario in scenarios() {
        server.command(&["FLUSHALL"]).unwrap();
        let service = redis_service(&server, scenario.1.clone(), test_limits()).await;
        check_scenario(&service, &scenario, "Redis").await;
    }
}

#[tokio::test]
async fn unknown_domain_is_not_limited() {
    let (service, _manual_clock) = memory_service(reference_settings(), test_limits());
    let request =
        DomainRequest { domain: "other".to_owned(), ..parse_request("user=alice @0/YEAR, user=bob") };
    assert_eq!(verdict_text(&service.decide(request).await.unwrap()), "OK: -, -");
    assert!(service.stats().contains("ratelimit.service.rate_limit.other.domain_not_found: 2\n"));
}

#[tokio::test]
async fn request_hits_default_to_one() {
    let (service, _manual_clock) = memory_service(reference_settings(), test_limits());
    for (hits, expected) in [(0, "OK: OK 9/10"), (1, "OK: OK 8/10"), (5, "OK: OK 3/10")] {
        let request = DomainRequest { hits, ..parse_request("path=/big") };
        assert_eq!(verdict_text(&service.decide(request).await.unwrap()), expected);
    }
    let request = DomainRequest { hits: 5, ..parse_request("path=/big x1") };
    assert_eq!(verdict_text(&service.decide(request).await.unwrap()), "OK: OK 2/10");
}

#[tokio::test]
async fn invalid_requests_are_rejected() {
    let (service, _manual_clock) = memory_service(reference_settings(), test_limits());
    let many = vec!["user=alice"; 10_000].join(", ");
    let mut deep = parse_request("user=");
    deep.descriptors[0].entries = vec![deep.descriptors[0].entries[0].clone(); 65];
    let table = [
        (
            DomainRequest { domain: String::new(), ..parse_request("user=alice") },
            "rate limit domain must not be empty",
        ),
        (
            DomainRequest { descriptors: Vec::new(), ..parse_request("user=alice") },
            "rate limit descriptor list must not be empty",
        ),
        (parse_request(&many), "too many descriptors: 10000; send at most 1000"),
        (deep, "descriptors[0]: too many entries: 65; send at most 64"),
    ];
    for (request, expected) in table {
        let error = service.decide(request).await.unwrap_err();
        assert_eq!(error, DecisionError::Invalid(expected.to_owned()));
    }
    let empty = DescriptorService::new(reference_settings()).unwrap();
    assert_eq!(empty.decide(parse_request("user=alice")).await, Err(DecisionError::NoConfiguration));
}
