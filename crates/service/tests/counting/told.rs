//! What clients, Envoy and operators are told.

use crate::stage::{ask, decide, files, flagged, in_memory, named, per, quotas, shadow, together};
use serde_json::{Value, json};
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorLimit};
use tidegate_service::descriptors::{
    ConfigNeed, DescriptorService, Enforcement, HeaderNames, Health, HealthStatus, ServiceSettings,
    StoreNeed, TellBody, TellHeaders, TellMetadata, debug_page, health_page,
};

fn headers(tell: TellHeaders) -> (DescriptorService, tidegate_limiter::ManualClock) {
    let settings = ServiceSettings { headers: tell, ..ServiceSettings::default() };
    let limits = [
        ("user", per(5, CalendarUnit::Minute)),
        ("path", named("per path", &[], per(3, CalendarUnit::Hour))),
        ("model", together(per(1, CalendarUnit::Day))),
        ("both", quotas(&["2 per 10s", "9/h"])),
    ];
    let (service, hand) = in_memory(settings, files(&limits));
    hand.set(Micros::from_secs(3_600 * 300_000 + 10));
    (service, hand)
}

async fn told(service: &DescriptorService, request: &str) -> Vec<String> {
    let verdict = service.decide(ask(request)).await.unwrap();
    verdict.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

#[tokio::test]
async fn three_headers_tell_of_the_limit_that_is_closest_to_its_end() {
    let (service, _hand) = headers(TellHeaders::Three(HeaderNames::rate_limit()));
    let table: [(&str, &[&str]); 5] = [
        ("user=a, path=/", &["RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 3590"]),
        ("nobody=knows", &[]),
        // The one that is over by itself, though others have nothing left either.
        (
            "model=x x2, user=a x9, path=/ x0",
            &["RateLimit-Limit: 5", "RateLimit-Remaining: 0", "RateLimit-Reset: 50"],
        ),
        ("user=a, path=/ x9", &["RateLimit-Limit: 3", "RateLimit-Remaining: 0", "RateLimit-Reset: 3590"]),
        ("path=/new, user=b", &["RateLimit-Limit: 3", "RateLimit-Remaining: 2", "RateLimit-Reset: 3590"]),
    ];
    for (request, expected) in table {
        assert_eq!(told(&service, request).await, expected, "{request}");
    }
    let (service, _hand) = headers(TellHeaders::Three(HeaderNames::x_rate_limit()));
    assert_eq!(told(&service, "user=a").await[0], "X-RateLimit-Limit: 5");
}

#[tokio::test]
async fn the_draft_tells_of_all_limits() {
    let (service, _hand) = headers(TellHeaders::Ietf);
    let expected = [
        r#"RateLimit-Policy: "shop.user";q=5;w=60, "per path";q=3;w=3600, "override";q=7;w=1"#,
        r#"RateLimit: "shop.user";r=4;t=50, "per path";r=2;t=3590, "override";r=6;t=1"#,
    ];
    assert_eq!(told(&service, "user=a, path=/, guest=it @7/SECOND, nobody=knows").await, expected);
    let expected = [r#"RateLimit-Policy: "shop.both";q=2;w=10"#, r#"RateLimit: "shop.both";r=1;t=5"#];
    assert_eq!(told(&service, "both=a").await, expected);
    assert!(told(&service, "nobody=knows").await.is_empty());
}

#[tokio::test]
async fn a_refusal_has_a_problem_and_metadata_is_merged() {
    let says = |metadata: Value, limit| DescriptorLimit { metadata: Some(Arc::new(metadata)), ..limit };
    let limits = [
        ("user", says(json!({ "plan": "free", "a": 1 }), per(1, CalendarUnit::Minute))),
        ("path", says(json!({ "plan": "any", "b": 2 }), per(9, CalendarUnit::Minute))),
        ("watched", shadow(per(0, CalendarUnit::Minute))),
    ];
    let settings = ServiceSettings {
        body: TellBody::Problem,
        metadata: TellMetadata::Asked,
        ..ServiceSettings::default()
    };
    let (service, _hand) = in_memory(settings, files(&limits));
    let first = service.decide(ask("user=a, path=/ x2 @3/DAY, path=/")).await.unwrap();
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

    let second = service.decide(ask("user=a, path=/, watched=it")).await.unwrap();
    let problem: Value = serde_json::from_str(&second.body.unwrap()).unwrap();
    assert_eq!(problem["status"], 429);
    assert_eq!(problem["violated-policies"], json!(["shop.user"]));
    assert_eq!(problem["retry-after"], 20, "1,000,000,000 s is 40 s into a minute");
    assert_eq!(second.metadata.unwrap()["metadata"], json!({ "plan": "any", "b": 2 }));
}

#[tokio::test]
async fn metrics_have_the_names_that_boards_know() {
    let settings =
        ServiceSettings { enforcement: Enforcement::Shadow, most_details: 2, ..Default::default() };
    let limits = [
        ("user", per(10, CalendarUnit::Minute)),
        ("ip", flagged(per(9, CalendarUnit::Minute), |flags| flags.detailed_metric = true)),
        ("watched", shadow(per(1, CalendarUnit::Minute))),
    ];
    let (service, _hand) = in_memory(settings, files(&limits));
    for request in
        ["user=a x8", "user=a x5", "watched=it x3", "ip=10.0.0.1", "ip=a", "ip=b", "ip=c", "x=1 @5/DAY"]
    {
        decide(&service, request).await;
    }
    service.metrics().config_refused();
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
        assert!(stats.lines().any(|told| told == line), "{line} is not in\n{stats}");
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
        assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
    }
}

#[test]
fn metric_families_have_help_and_type_and_are_documented() {
    let (service, _hand) = in_memory(ServiceSettings::default(), files(&[]));
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
async fn a_million_overrides_and_values_leave_metrics_as_large_as_before() {
    let limits = [("ip", flagged(per(9, CalendarUnit::Day), |flags| flags.detailed_metric = true))];
    let (service, _hand) = in_memory(ServiceSettings::default(), files(&limits));
    for number in 0..500_000 {
        let brought = ask(&format!("guest={number} @{number}/DAY"));
        service.decide(brought).await.unwrap();
        service.decide(ask(&format!("ip={number}"))).await.unwrap();
    }
    // A hundred values and the rest, of both.
    assert_eq!(service.metrics().series(), 202);
}

#[tokio::test]
async fn pages_and_health() {
    let (service, _hand) =
        in_memory(ServiceSettings::default(), files(&[("user", per(1, CalendarUnit::Day))]));
    let page = |path: &str| {
        let page = debug_page(&service, path);
        (page.status().as_u16(), String::from_utf8(page.into_body().to_vec()).unwrap())
    };
    assert_eq!(page("/rlconfig"), (200, "shop.user\n".to_owned()));
    assert!(page("/").1.contains("/rlconfig") && page("/stats").1.contains("total_requests: 0"));
    assert!(page("/metrics").1.contains("# TYPE ratelimit_service_total_requests counter"));
    assert_eq!(page("/nowhere").0, 404);

    let empty = Arc::new(DescriptorService::new(ServiceSettings::default()).unwrap());
    let health = Health::new(empty.clone()).config(ConfigNeed::Loaded);
    assert_eq!(health.status(), HealthStatus::NotServing("no configuration is loaded".to_owned()));
    empty.load(files(&[]));
    assert_eq!(health_page(&health).status(), 200);
    assert_eq!(health_page(&health).body(), "OK");
    let away = Health::new(empty).store(StoreNeed::AtStart, || Some("gone".to_owned()));
    assert_eq!(health_page(&away).status(), 500);
    assert!(health_page(&away).body().is_empty());
    health.drain();
    assert_eq!(health_page(&health).status(), 500);
}

#[tokio::test]
async fn windows_end_when_the_clock_says_so() {
    let table = [
        (CalendarUnit::Second, 1),
        (CalendarUnit::Minute, 20),
        (CalendarUnit::Hour, 800),
        (CalendarUnit::Day, 80_000),
        // From Thursday to Thursday.
        (CalendarUnit::Week, 339_200),
    ];
    for (unit, ends) in table {
        let (service, hand) = in_memory(ServiceSettings::default(), files(&[("user", per(1, unit))]));
        for request in ["user=a x0", "user=a", "user=a"] {
            let verdict = service.decide(ask(request)).await.unwrap();
            assert_eq!(verdict.statuses[0].reset, Some(Duration::from_secs(ends)), "{unit}: {request}");
        }
        hand.advance(Duration::from_secs(ends) - Duration::from_micros(1));
        let verdict = service.decide(ask("user=a")).await.unwrap();
        assert_eq!(verdict.statuses[0].reset, Some(Duration::from_secs(1)), "{unit}");
        assert_eq!(decide(&service, "user=a").await, "OVER: OVER 0/1", "{unit}");
        hand.advance(Duration::from_micros(1));
        assert_eq!(decide(&service, "user=a").await, "OK: OK 0/1", "{unit}");
    }
}
