//! Responses to rejected requests, with all their options, and protection against header injection.

#![allow(clippy::unwrap_used, reason = "a failed unwrap fails the test")]

use proptest::prelude::*;
use std::time::Duration;
use tidegate_core::{
    Decision, Demand, Micros, Quota,
    header::{CostUnit, PolicyField},
};
use tidegate_limiter::{Clock, WaitError};
use tidegate_overload::{CallError, Rejection};
use tidegate_rule::{HeaderStyle, Limited, RejectionResponse, RuleConfig, Rules, Settings};

fn policy_field(name: &str, quota: &str) -> PolicyField {
    PolicyField::new(name, &quota.parse().unwrap())
}

/// The decision of a new quota on this cost.
fn decide(quota: &str, cost: u64) -> Decision {
    let quota: Quota = quota.parse().unwrap();
    quota.decide(vec![0; quota.state_len()].as_mut_slice(), Micros::ZERO, Demand::new(cost)).decision
}

fn headers(response: &RejectionResponse) -> Vec<String> {
    response.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

fn body(response: &RejectionResponse) -> serde_json::Value {
    serde_json::from_str(&response.body).unwrap()
}

fn limited(wait: Duration) -> Limited {
    let quota: Quota = "5/min".parse().unwrap();
    Limited::new("login", CallError::Limited(Decision::deny(5, wait.into()))).with_quota(Some(quota))
}

#[test]
fn messages_round_durations() {
    for (wait, expected) in [
        (Duration::from_micros(3_599_999_963), "login: limit of 5 exceeded; retry in 1h"),
        (Duration::from_micros(49_001), "login: limit of 5 exceeded; retry in 50ms"),
        (Duration::from_secs(5_400), "login: limit of 5 exceeded; retry in 1h 30min"),
    ] {
        assert_eq!(limited(wait).to_string(), expected);
        assert_eq!(limited(wait).client_message(), expected);
    }
    let open = Limited::new("orders", CallError::GuardRejected(Rejection::Open(Micros::new(59_999_999))));
    assert_eq!(open.to_string(), "orders: circuit breaker open; next probe in 1min");
}

#[test]
fn limit_in_every_header_style() {
    let limited = limited(Duration::from_millis(1));
    let with = |fields| headers(&RejectionResponse::from_limited(&limited, fields));
    let problem = "content-type: application/problem+json";
    assert_eq!(
        with(HeaderStyle::Ietf),
        ["retry-after: 1", r#"ratelimit-policy: "login";q=5;w=60"#, r#"ratelimit: "login";r=0;t=1"#, problem]
    );
    assert_eq!(
        with(HeaderStyle::Legacy),
        [
            "retry-after: 1",
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 1",
            problem
        ]
    );
    assert_eq!(
        with(HeaderStyle::Draft03),
        [
            "retry-after: 1",
            "ratelimit-limit: 5, 5;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 1",
            problem
        ]
    );
    assert_eq!(with(HeaderStyle::None), ["retry-after: 1", problem]);
}

#[test]
fn problem_details_describe_limit() {
    assert_eq!(
        body(&RejectionResponse::from(&limited(Duration::from_secs(7)))),
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "The quota is used up.",
            "violated-policies": ["login"],
            "retry-after": 7,
        })
    );
    let open = Limited::new("payments", CallError::GuardRejected(Rejection::Open(Micros::from_secs(4))));
    assert_eq!(
        body(&RejectionResponse::from(open)),
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
            "title": "Temporarily reduced capacity",
            "status": 503,
            "detail": "The server cannot take this request now.",
            "retry-after": 4,
        })
    );
}

#[test]
fn server_side_rejection_is_503() {
    for (cause, status, retry) in [
        (CallError::Limited(Decision::deny(5, Micros::ZERO)), 429, Some("1")),
        (CallError::Limited(decide("5/min", 6)), 429, None),
        (CallError::GuardRejected(Rejection::Open(Micros::new(1))), 503, Some("1")),
        (CallError::GuardRejected(Rejection::ConcurrencyLimitReached), 503, None),
        (CallError::GuardRejected(Rejection::ForcedOpen), 503, None),
        (CallError::WaitFailed(WaitError::QueueFull), 503, None),
        (CallError::WaitFailed(WaitError::DeadlineExceeded), 503, None),
        (CallError::FeatureDisabled, 503, None),
        (CallError::Misconfigured("src/shop.rs:1:1".into()), 503, None),
    ] {
        let response = RejectionResponse::from(Limited::new("x", cause.clone()));
        assert_eq!((response.status, response.get("retry-after")), (status, retry), "{cause}");
    }
    assert_eq!(
        (RejectionResponse::missing_key().status, &body(&RejectionResponse::missing_key())["status"]),
        (400, &400.into())
    );
}

#[test]
fn response_lists_several_quotas() {
    let decisions = [
        (policy_field("login", "5/min"), Decision::deny(5, Micros::from_secs(3))),
        (policy_field("login.2", "20/h"), Decision::deny(20, Micros::from_secs(90))),
        (policy_field("api", "3 at once"), Decision::from_in_flight(3, 1)),
    ];
    let each = || decisions.iter().map(|(label, decision)| (label, decision));
    let limited = limited(Duration::from_secs(3));

    let response = RejectionResponse::from_decisions(&limited, each(), HeaderStyle::Ietf, &Clock::wall());
    assert_eq!(response.get("retry-after"), Some("90"));
    assert_eq!(
        response.get("ratelimit-policy"),
        Some(r#""login";q=5;w=60, "login.2";q=20;w=3600, "api";q=3;qu="concurrent-requests""#)
    );
    assert_eq!(response.get("ratelimit"), Some(r#""login";r=0;t=3, "login.2";r=0;t=90, "api";r=2"#));
    assert_eq!(body(&response)["violated-policies"], serde_json::json!(["login", "login.2"]));

    let response = RejectionResponse::from_decisions(&limited, each(), HeaderStyle::Legacy, &Clock::wall());
    assert_eq!(
        (response.get("x-ratelimit-limit"), response.get("x-ratelimit-reset")),
        (Some("20"), Some("90"))
    );
    let response = RejectionResponse::from_decisions(&limited, [], HeaderStyle::Ietf, &Clock::wall());
    assert_eq!(response.get("ratelimit"), None);
}

/// A retry after one quota would still exceed what another one can ever admit.
#[test]
fn no_retry_after_when_retry_cannot_succeed() {
    let decisions = [
        (policy_field("login", "5/min"), Decision::deny(5, Micros::from_secs(3))),
        (policy_field("uploads", "5/min"), decide("5/min", 6)),
    ];
    let each = decisions.iter().map(|(label, decision)| (label, decision));
    let limited = limited(Duration::from_secs(3));
    let response = RejectionResponse::from_decisions(&limited, each, HeaderStyle::Ietf, &Clock::wall());
    assert_eq!((response.status, response.get("retry-after")), (429, None));
    assert_eq!(body(&response).get("retry-after"), None);
}

#[test]
fn admitted_response_has_quota_headers() {
    let decisions = [
        (policy_field("burst", "100/min burst 20"), decide("100/min burst 20", 18)),
        (policy_field("day", "1000/d fixed-window"), decide("1000/d fixed-window", 1)),
    ];
    let written = |fields: HeaderStyle, decisions: &[(PolicyField, Decision)]| {
        let mut written = Vec::new();
        let decisions = decisions.iter().map(|(label, decision)| (label, decision));
        fields.write(decisions, &Clock::wall(), |name, value| written.push(format!("{name}: {value}")));
        written
    };
    assert_eq!(
        written(HeaderStyle::Ietf, &decisions),
        [
            r#"ratelimit-policy: "burst";q=20;w=12, "day";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=2;t=1, "day";r=999;t=86400"#
        ]
    );
    let least = ["x-ratelimit-limit: 20", "x-ratelimit-remaining: 2", "x-ratelimit-reset: 1"];
    assert_eq!(written(HeaderStyle::Legacy, &decisions), least);
    let untouched = [(policy_field("burst", "5/min"), decide("5/min", 0))];
    assert_eq!(
        written(HeaderStyle::Draft03, &untouched),
        ["ratelimit-limit: 5, 5;w=60", "ratelimit-remaining: 5", "ratelimit-reset: 0"]
    );
    let in_flight = [(policy_field("slots", "3 at once"), Decision::from_in_flight(3, 3))];
    assert_eq!(
        written(HeaderStyle::Legacy, &in_flight),
        ["x-ratelimit-limit: 3", "x-ratelimit-remaining: 0"]
    );
    assert!(written(HeaderStyle::None, &decisions).is_empty() && written(HeaderStyle::Ietf, &[]).is_empty());
}

/// Providers of language models count tokens and requests. Concurrent requests and bytes have no header.
#[test]
fn provider_headers_name_the_unit() {
    let (wall_clock, time) = Clock::manual();
    // 29 February 2000, 12:34:56.789012.
    time.set(Micros::new(951_827_696_789_012));
    let tokens = |name, quota| policy_field(name, quota).with_unit(CostUnit::Tokens);
    let decisions = [
        (policy_field("calls", "60/min"), decide("60/min", 1)),
        (tokens("minute", "40000/min fixed-window"), decide("40000/min fixed-window", 300)),
        (tokens("day", "1000000/d"), decide("1000000/d", 250_000)),
        (tokens("slots", "3 at once"), Decision::from_in_flight(3, 3)),
        (tokens("bytes", "5kB/s"), decide("5kB/s", 5_000)),
    ];
    let written = |style: HeaderStyle, decisions: &[(PolicyField, Decision)]| {
        let mut written = Vec::new();
        let decisions = decisions.iter().map(|(label, decision)| (label, decision));
        style.write(decisions, &wall_clock, |name, value| written.push(format!("{name}: {value}")));
        written
    };
    assert_eq!(
        written(HeaderStyle::OpenAi, &decisions),
        [
            "x-ratelimit-limit-requests: 60",
            "x-ratelimit-remaining-requests: 59",
            "x-ratelimit-reset-requests: 1s",
            "x-ratelimit-limit-tokens: 40000",
            "x-ratelimit-remaining-tokens: 39700",
            "x-ratelimit-reset-tokens: 1m0s",
        ]
    );
    assert_eq!(
        written(HeaderStyle::Anthropic, &decisions[1..]),
        [
            "anthropic-ratelimit-tokens-limit: 40000",
            "anthropic-ratelimit-tokens-remaining: 39700",
            "anthropic-ratelimit-tokens-reset: 2000-02-29T12:35:57Z",
        ]
    );
    for (quota, cost, reset) in [
        ("1000000/d", 250_000, "6h0m0s"),
        ("100/s", 12, "120ms"),
        ("100/s", 0, "0s"),
        ("1/min", 1, "1m0s"),
        ("60/min", 59, "59s"),
    ] {
        let headers = written(HeaderStyle::OpenAi, &[(tokens("x", quota), decide(quota, cost))]);
        assert_eq!(headers[2], format!("x-ratelimit-reset-tokens: {reset}"), "{quota}");
    }
    // A total never refills.
    let total = [(tokens("total", "1000 total"), decide("1000 total", 200))];
    assert_eq!(
        written(HeaderStyle::OpenAi, &total),
        ["x-ratelimit-limit-tokens: 1000", "x-ratelimit-remaining-tokens: 800"]
    );
}

#[tokio::test]
async fn limited_names_denying_quota() {
    let rules = Rules::new();
    rules.apply(Settings::new().clock(Clock::manual().0)).unwrap();
    let rule = rules.declare(RuleConfig::new("login").quota("9/min").unwrap().quota("2/h").unwrap()).unwrap();
    rule.admit("alice", 2).await.unwrap();
    let response = RejectionResponse::from(rule.admit("alice", 1).await.unwrap_err());
    assert_eq!(response.get("ratelimit"), Some(r#""login.2";r=0;t=1800"#));
    assert_eq!(body(&response)["violated-policies"], serde_json::json!(["login.2"]));
}

#[test]
fn custom_rejection_response() {
    let response = RejectionResponse::from(&limited(Duration::from_secs(1)))
        .status(420)
        .header("X-Note", "hi")
        .text("Calm down.");
    assert_eq!((response.status, &*response.body), (420, "Calm down."));
    assert_eq!(response.get("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!((response.get("x-note"), response.get("retry-after")), (Some("hi"), Some("1")));
    assert_eq!(response.headers.iter().filter(|(name, _)| name == "content-type").count(), 1);
    assert_eq!(RejectionResponse::new(429).json("{}").get("content-type"), Some("application/json"));
    let elsewhere = RejectionResponse::redirect("/wait");
    assert_eq!((elsewhere.status, elsewhere.get("location")), (303, Some("/wait")));
    for (status, sent) in [(429, 429), (200, 200), (0, 429), (100, 429), (600, 429), (u16::MAX, 429)] {
        assert_eq!(RejectionResponse::new(status).final_status(), sent);
    }
}

proptest! {
    /// Whatever the name and the message of a rule: no header can be terminated, and no other one injected.
    #[test]
    fn header_values_cannot_inject_lines(name in "(?s).*", text in "(?s).*") {
        let limited = limited(Duration::from_secs(1)).with_message(Some(text.as_str().into()));
        let denied = Decision::deny(5, Micros::from_secs(1));
        let label = policy_field(&name, "5/min");
        let decisions = [(&label, &denied)];
        let response = RejectionResponse::from_decisions(&limited, decisions, HeaderStyle::Ietf, &Clock::wall())
            .header("x-note", &text)
            .header(&name, "value")
            .header("location", format!("/{text}\r\nset-cookie: a=b"));
        for (name, value) in &response.headers {
            prop_assert!(!value.chars().any(|c| c.is_control() && c != '\t'));
            prop_assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
        }
        prop_assert_eq!(response.get("set-cookie"), None);
        prop_assert_eq!(&body(&response)["detail"], &text);
        prop_assert_eq!(&body(&response)["violated-policies"][0], &name);
    }
}
