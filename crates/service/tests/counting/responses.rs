//! Responses to clients and Envoy, and pages for operators.

use crate::common::{
    decide, memory_service, named_limit, parse_request, per_unit, quota_mode_limit, shadow_limit,
    test_config, with_flags, with_quotas,
};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorLimit};
use tidegate_service::descriptors::{
    ConfigRequirement, DescriptorService, GlobalEnforcement, HeaderNames, HealthStatus, ResponseBodyMode,
    ResponseHeaderMode, ResponseMetadataMode, ServiceHealth, ServiceSettings, StoreRequirement, debug_page,
    health_page,
};

fn service_with_headers(mode: ResponseHeaderMode) -> (DescriptorService, tidegate_limiter::ManualClock) {
    let settings = ServiceSettings { headers: mode, ..ServiceSettings::default() };
    let limits = [
        ("user", per_unit(5, CalendarUnit::Minute)),
        ("path", named_limit("per path", &[], per_unit(3, CalendarUnit::Hour))),
        ("model", quota_mode_limit(per_unit(1, CalendarUnit::Day))),
        ("both", with_quotas(&["2 per 10s", "9/h"])),
    ];
    let (service, manual_clock) = memory_service(settings, test_config(&limits));
    manual_clock.set(Micros::from_secs(3_600 * 300_000 + 10));
    (service, manual_clock)
}

async fn response_headers(service: &DescriptorService, request: &str) -> Vec<String> {
    let verdict = service.decide(parse_request(request)).await.unwrap();
    verdict.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[tokio::test]
async fn custom_headers_report_the_tightest_limit() {
    let (service, _manual_clock) =
        service_with_headers(ResponseHeaderMode::Custom(HeaderNames::rate_limit()));
    let table: [(&str, &[&str]); 5] = [
        ("user=a, path=/", &["RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 3590"]),
        ("unknown=key", &[]),
        // The limit that denies on its own, even if others have nothing remaining either.
        (
            "model=x x2, user=a x9, path=/ x0",
            &["RateLimit-Limit: 5", "RateLimit-Remaining: 0", "RateLimit-Reset: 50"],
        ),
        ("user=a, path=/ x9", &["RateLimit-Limit: 3", "RateLimit-Remaining: 0", "RateLimit-Reset: 3590"]),
        ("path=/new, user=b", &["RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 3590"]),
    ];
    for (request, expected) in table {
        assert_eq!(response_headers(&service, request).await, expected, "{request}");
    }
    let (service, _manual_clock) =
        service_with_headers(ResponseHeaderMode::Custom(HeaderNames::x_rate_limit()));
    assert_eq!(response_headers(&service, "user=a").await[0], "X-RateLimit-Limit: 5");
}

#[tokio::test]
async fn ietf_headers_report_all_limits() {
    let (service, _manual_clock) = service_with_headers(ResponseHeaderMode::Ietf);
    let expected = [
        r#"RateLimit-Policy: "shop.user";q=5;w=60, "per path";q=3;w=3600, "override";q=7;w=1"#,
        r#"RateLimit: "shop.user";r=4;t=50, "per path";r=2;t=3590, "override";r=6;t=1"#,
    ];
    assert_eq!(
        response_headers(&service, "user=a, path=/, anonymous=it @7/SECOND, unknown=key").await,
        expected
    );
    let expected = [r#"RateLimit-Policy: "shop.both";q=2;w=10"#, r#"RateLimit: "shop.both";r=1;t=5"#];
    assert_eq!(response_headers(&service, "both=a").await, expected);
    assert!(response_headers(&service, "unknown=key").await.is_empty());
}

#[tokio::test]
async fn denial_has_problem_body_and_merged_metadata() {
    let with_metadata =
        |metadata: Value, limit| DescriptorLimit { metadata: Some(Arc::new(metadata)), ..limit };
    let limits = [
        ("user", with_metadata(json!({ "plan": "free", "a": 1 }), per_unit(1, CalendarUnit::Minute))),
        ("path", with_metadata(json!({ "plan": "any", "b": 2 }), per_unit(9, CalendarUnit::Minute))),
        ("watched", shadow_limit(per_unit(0, CalendarUnit::Minute))),
    ];
    let settings = ServiceSettings {
        body: ResponseBodyMode::Problem,
        metadata: ResponseMetadataMode::Request,
        ..ServiceSettings::default()
    };
    let (service, _manual_clock) = memory_service(settings, test_config(&limits));
    let first = service.decide(parse_request("user=a, path=/ x2 @3/DAY, path=/")).await.unwrap();
    assert_eq!(first.body, None);
    let expected = json!({
        "domain": "shop",
        "descriptors": [
            { "entries": ["user=a"] },
            { "entries": ["path=/"], "limit": "requests_per_unit:3 unit:DAY", "hitsAddend": 2 },
            { "entries": ["path=/"] },
        ],
        "metadata": { "plan": "free", "a": 1, "b": 2 },
    });
    assert_eq!(first.metadata, Some(expected));

    let second = service.decide(parse_request("user=a, path=/, watched=it")).await.unwrap();
    let problem: Value = serde_json::from_str(&second.body.unwrap()).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["shop.user"]));
    assert_eq!(problem["retry-after"], 20, "1,000,000,000 s is 40 s into a minute");
    assert_eq!(second.metadata.unwrap()["metadata"], json!({ "plan": "any", "b": 2 }));
}

#[tokio::test]
async fn metric_names_match_the_reference() {
    let settings =
        ServiceSettings { enforcement: GlobalEnforcement::Shadow, max_details: 2, ..Default::default() };
    let limits = [
        ("user", per_unit(10, CalendarUnit::Minute)),
        ("ip", with_flags(per_unit(9, CalendarUnit::Minute), |flags| flags.detailed_metric = true)),
        ("watched", shadow_limit(per_unit(1, CalendarUnit::Minute))),
    ];
    let (service, _manual_clock) = memory_service(settings, test_config(&limits));
    for request in
        ["user=a x8", "user=a x5", "watched=it x3", "ip=10.0.0.1", "ip=a", "ip=b", "ip=c", "x=1 @5/DAY"]
    {
        decide(&service, request).await;
    }
    service.metrics().record_config_error();
    let stats = service.stats();
    for line in [
        "ratelimit.service.rate_limit.shop.user.total_hits: 13",
        "ratelimit.service.rate_limit.shop.user.over_limit: 3",
        "ratelimit.service.rate_limit.shop.user.near_limit: 2",
        "ratelimit.service.rate_limit.shop.user.within_limit: 8",
        "ratelimit.service.rate_limit.shop.watched.shadow_mode: 2",
        "ratelimit.service.rate_limit.shop.watched.over_limit: 2",
        "ratelimit.service.rate_limit.shop.ip_10_0_0_1.total_hits: 1",
        "ratelimit.service.rate_limit.shop.ip_a.total_hits: 1",
        "ratelimit.service.rate_limit.shop.ip.other.total_hits: 2",
        "ratelimit.service.rate_limit.shop.x_1.total_hits: 1",
        "ratelimit.service.global_shadow_mode: 1",
        "ratelimit.service.config_load_success: 1",
        "ratelimit.service.config_load_error: 1",
        "ratelimit_server.ShouldRateLimit.total_requests: 8",
    ] {
        assert!(stats.lines().any(|known| known == line), "{line} is not in\n{stats}");
    }
    let text = service.prometheus();
    for line in [
        r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="user"} 13"#,
        r#"ratelimit_service_rate_limit_near_limit{domain="shop",key1="user"} 2"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="ip",key2="other"} 2"#,
        r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="x_1"} 1"#,
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
        r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 8"#,
        r#"ratelimit_service_response_time_seconds_bucket{grpc_method="ShouldRateLimit",le="0.0001"} 8"#,
        r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 8"#,
        "ratelimit_service_config_load_success 1",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} is not in\n{text}");
    }
}

#[test]
fn metric_families_have_help_and_type_and_are_documented() {
    let (service, _manual_clock) = memory_service(ServiceSettings::default(), test_config(&[]));
    let text = service.prometheus();
    let lines: Vec<&str> = text.lines().collect();
    let mut exposed = BTreeSet::new();
    for (index, line) in lines.iter().enumerate() {
        let Some((name, _)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) else {
            continue;
        };
        let help =
            index.checked_sub(1).and_then(|before| lines[before].strip_prefix(&format!("# HELP {name} ")));
        assert!(help.is_some_and(|help| help.ends_with('.')), "{name}: {help:?}");
        assert!(exposed.insert(name), "{name} is exposed twice");
    }
    let page = include_str!("../../../../docs/envoy.md");
    let documented = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let documented: BTreeSet<&str> = documented.filter(|name| name.starts_with("ratelimit_")).collect();
    assert_eq!(exposed, documented);
}

#[tokio::test]
async fn metrics_size_is_bounded() {
    let limits = [("ip", with_flags(per_unit(9, CalendarUnit::Day), |flags| flags.detailed_metric = true))];
    let (service, _manual_clock) = memory_service(ServiceSettings::default(), test_config(&limits));
    for number in 0..20_000 {
        let with_override = parse_request(&format!("anonymous={number} @{number}/DAY"));
        service.decide(with_override).await.unwrap();
        service.decide(parse_request(&format!("ip={number}"))).await.unwrap();
    }
    // 100 names and a collective one, for limits and for overrides.
    assert_eq!(service.metrics().series_count(), 202);
}

#[tokio::test]
async fn debug_pages_and_health_are_served() {
    let (service, _manual_clock) =
        memory_service(ServiceSettings::default(), test_config(&[("user", per_unit(1, CalendarUnit::Day))]));
    let page = |path: &str| {
        let page = debug_page(&service, path);
        (page.status().as_u16(), String::from_utf8(page.into_body().to_vec()).unwrap())
    };
    assert_eq!(page("/rlconfig"), (200, "shop.user\n".to_owned()));
    assert!(page("/").1.contains("/rlconfig") && page("/stats").1.contains("total_requests: 0"));
    assert!(page("/metrics").1.contains("# TYPE ratelimit_service_total_requests counter"));
    assert_eq!(page("/nowhere").0, 404);

    let empty = Arc::new(DescriptorService::new(ServiceSettings::default()).unwrap());
    let health = ServiceHealth::new(empty.clone()).config(ConfigRequirement::Required);
    assert_eq!(health.status(), HealthStatus::NotServing("no configuration loaded".to_owned()));
    empty.load(test_config(&[]));
    assert_eq!(health_page(&health).status(), 200);
    assert_eq!(health_page(&health).body(), "OK");
    let unavailable = ServiceHealth::new(empty).store(StoreRequirement::Startup, || Some("gone".to_owned()));
    assert_eq!(health_page(&unavailable).status(), 500);
    assert!(health_page(&unavailable).body().is_empty());
    health.drain();
    assert_eq!(health_page(&health).status(), 500);
}

#[tokio::test]
async fn reset_times_follow_the_clock() {
    let table = [
        (CalendarUnit::Second, 1),
        (CalendarUnit::Minute, 20),
        (CalendarUnit::Hour, 800),
        (CalendarUnit::Day, 80_000),
        // From Thursday to Thursday.
        (CalendarUnit::Week, 339_200),
    ];
    for (unit, ends) in table {
        let (service, manual_clock) =
            memory_service(ServiceSettings::default(), test_config(&[("user", per_unit(1, unit))]));
        for request in ["user=a x0", "user=a", "user=a"] {
            let verdict = service.decide(parse_request(request)).await.unwrap();
            assert_eq!(verdict.statuses[0].reset, Some(Duration::from_secs(ends)), "{unit}: {request}");
        }
        manual_clock.advance(Duration::from_secs(ends) - Duration::from_micros(1));
        let verdict = service.decide(parse_request("user=a")).await.unwrap();
        assert_eq!(verdict.statuses[0].reset, Some(Duration::from_secs(1)), "{unit}");
        assert_eq!(decide(&service, "user=a").await, "OVER: OVER 0/1", "{unit}");
        manual_clock.advance(Duration::from_micros(1));
        assert_eq!(decide(&service, "user=a").await, "OK: OK 0/1", "{unit}");
    }
}
