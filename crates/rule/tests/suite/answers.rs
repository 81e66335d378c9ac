//! What is answered to whoever was refused, in all its choices, and that nothing can be smuggled into it.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

use proptest::prelude::*;
use std::time::Duration;
use tidegate_core::{Decision, Demand, Micros, Quota, header::PolicyField};
use tidegate_limiter::WaitError;
use tidegate_overload::{Cause, Rejection};
use tidegate_rule::{Answer, Declaration, Fields, Limited, Rules, Settings};

fn label(name: &str, quota: &str) -> PolicyField {
    PolicyField::new(name, &quota.parse().unwrap())
}

/// What a quota says to so much at once, when it was never asked before.
fn decide(quota: &str, cost: u64) -> Decision {
    let quota: Quota = quota.parse().unwrap();
    quota.decide(vec![0; quota.state_len()].as_mut_slice(), Micros::ZERO, Demand::new(cost)).decision
}

fn headers(answer: &Answer) -> Vec<String> {
    answer.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect()
}

fn body(answer: &Answer) -> serde_json::Value {
    serde_json::from_str(&answer.body).unwrap()
}

fn limited(wait: Duration) -> Limited {
    let quota: Quota = "5/min".parse().unwrap();
    Limited::new("login", Cause::Limited(Decision::deny(5, wait.into()))).with_quota(Some(quota))
}

#[test]
fn a_person_is_told_no_microseconds() {
    for (wait, told) in [
        (Duration::from_micros(3_599_999_963), "login: over the limit of 5, try again in 1h"),
        (Duration::from_micros(49_001), "login: over the limit of 5, try again in 50ms"),
        (Duration::from_secs(5_400), "login: over the limit of 5, try again in 1h 30min"),
    ] {
        assert_eq!(limited(wait).to_string(), told);
        assert_eq!(limited(wait).told(), told);
    }
    let open = Limited::new("orders", Cause::Rejected(Rejection::Open(Micros::new(59_999_999))));
    assert_eq!(open.to_string(), "orders: the breaker is open; a probe may go in 1min");
}

#[test]
fn a_limit_in_every_choice_of_fields() {
    let limited = limited(Duration::from_millis(1));
    let with = |fields| headers(&Answer::of(&limited, fields));
    let problem = "content-type: application/problem+json";
    assert_eq!(
        with(Fields::Ietf),
        ["retry-after: 1", r#"ratelimit-policy: "login";q=5;w=60"#, r#"ratelimit: "login";r=0;t=1"#, problem]
    );
    assert_eq!(
        with(Fields::Legacy),
        [
            "retry-after: 1",
            "x-ratelimit-limit: 5",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 1",
            problem
        ]
    );
    assert_eq!(
        with(Fields::Draft03),
        [
            "retry-after: 1",
            "ratelimit-limit: 5, 5;w=60",
            "ratelimit-remaining: 0",
            "ratelimit-reset: 1",
            problem
        ]
    );
    assert_eq!(with(Fields::None), ["retry-after: 1", problem]);
}

#[test]
fn a_problem_says_what_it_is() {
    assert_eq!(
        body(&Answer::from(&limited(Duration::from_secs(7)))),
        serde_json::json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "detail": "The quota is used up.",
            "violated-policies": ["login"],
            "retry-after": 7,
        })
    );
    let open = Limited::new("payments", Cause::Rejected(Rejection::Open(Micros::from_secs(4))));
    assert_eq!(
        body(&Answer::from(open)),
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
fn what_a_client_cannot_mend_is_503() {
    for (cause, status, retry) in [
        (Cause::Limited(Decision::deny(5, Micros::ZERO)), 429, Some("1")),
        (Cause::Limited(decide("5/min", 6)), 429, None),
        (Cause::Rejected(Rejection::Open(Micros::new(1))), 503, Some("1")),
        (Cause::Rejected(Rejection::Full), 503, None),
        (Cause::Rejected(Rejection::ForcedOpen), 503, None),
        (Cause::Refused(WaitError::QueueFull), 503, None),
        (Cause::Refused(WaitError::DeadlineExceeded), 503, None),
        (Cause::SwitchedOff, 503, None),
        (Cause::Misconfigured("src/shop.rs:1:1".into()), 503, None),
    ] {
        let answer = Answer::from(Limited::new("x", cause.clone()));
        assert_eq!((answer.status, answer.get("retry-after")), (status, retry), "{cause}");
    }
    assert_eq!((Answer::missing_key().status, &body(&Answer::missing_key())["status"]), (400, &400.into()));
}

#[test]
fn a_verdict_of_several_quotas() {
    let told = [
        (label("login", "5/min"), Decision::deny(5, Micros::from_secs(3))),
        (label("login.2", "20/h"), Decision::deny(20, Micros::from_secs(90))),
        (label("api", "3 at once"), Decision::from_in_flight(3, 1)),
    ];
    let each = || told.iter().map(|(label, decision)| (label, decision));
    let limited = limited(Duration::from_secs(3));

    let answer = Answer::of_verdict(&limited, each(), Fields::Ietf);
    assert_eq!(answer.get("retry-after"), Some("90"));
    assert_eq!(
        answer.get("ratelimit-policy"),
        Some(r#""login";q=5;w=60, "login.2";q=20;w=3600, "api";q=3;qu="concurrent-requests""#)
    );
    assert_eq!(answer.get("ratelimit"), Some(r#""login";r=0;t=3, "login.2";r=0;t=90, "api";r=2"#));
    assert_eq!(body(&answer)["violated-policies"], serde_json::json!(["login", "login.2"]));

    let answer = Answer::of_verdict(&limited, each(), Fields::Legacy);
    assert_eq!((answer.get("x-ratelimit-limit"), answer.get("x-ratelimit-reset")), (Some("20"), Some("90")));
    assert_eq!(Answer::of_verdict(&limited, [], Fields::Ietf).get("ratelimit"), None);
}

/// Who waits for one quota and then still asks for more than another one ever grants was sent on a fool's errand.
#[test]
fn where_waiting_does_not_help_no_time_is_told() {
    let told = [
        (label("login", "5/min"), Decision::deny(5, Micros::from_secs(3))),
        (label("uploads", "5/min"), decide("5/min", 6)),
    ];
    let each = told.iter().map(|(label, decision)| (label, decision));
    let answer = Answer::of_verdict(&limited(Duration::from_secs(3)), each, Fields::Ietf);
    assert_eq!((answer.status, answer.get("retry-after")), (429, None));
    assert_eq!(body(&answer).get("retry-after"), None);
}

#[test]
fn fields_of_what_was_let_through() {
    let told = [
        (label("burst", "100/min burst 20"), decide("100/min burst 20", 18)),
        (label("day", "1000/d fixed-window"), decide("1000/d fixed-window", 1)),
    ];
    let written = |fields: Fields, told: &[(PolicyField, Decision)]| {
        let mut written = Vec::new();
        let told = told.iter().map(|(label, decision)| (label, decision));
        fields.write(told, |name, value| written.push(format!("{name}: {value}")));
        written
    };
    assert_eq!(
        written(Fields::Ietf, &told),
        [
            r#"ratelimit-policy: "burst";q=20;w=12, "day";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=2;t=1, "day";r=999;t=86400"#
        ]
    );
    let least = ["x-ratelimit-limit: 20", "x-ratelimit-remaining: 2", "x-ratelimit-reset: 1"];
    assert_eq!(written(Fields::Legacy, &told), least);
    let untouched = [(label("burst", "5/min"), decide("5/min", 0))];
    assert_eq!(
        written(Fields::Draft03, &untouched),
        ["ratelimit-limit: 5, 5;w=60", "ratelimit-remaining: 5", "ratelimit-reset: 0"]
    );
    let held = [(label("held", "3 at once"), Decision::from_in_flight(3, 3))];
    assert_eq!(written(Fields::Legacy, &held), ["x-ratelimit-limit: 3", "x-ratelimit-remaining: 0"]);
    assert!(written(Fields::None, &told).is_empty() && written(Fields::Ietf, &[]).is_empty());
}

#[tokio::test]
async fn a_rule_names_the_quota_that_refused() {
    let rules = Rules::new();
    rules.apply(Settings::new().clock(tidegate_limiter::Clock::manual().0)).unwrap();
    let rule = rules.rule(Declaration::of("login").quota("9/min").unwrap().quota("2/h").unwrap()).unwrap();
    rule.admit("alice", 2).await.unwrap();
    let answer = Answer::from(rule.admit("alice", 1).await.unwrap_err());
    assert_eq!(answer.get("ratelimit"), Some(r#""login.2";r=0;t=1800"#));
    assert_eq!(body(&answer)["violated-policies"], serde_json::json!(["login.2"]));
}

#[test]
fn an_answer_of_ones_own() {
    let answer =
        Answer::from(&limited(Duration::from_secs(1))).status(420).header("X-Note", "hi").text("Calm down.");
    assert_eq!((answer.status, &*answer.body), (420, "Calm down."));
    assert_eq!(answer.get("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!((answer.get("x-note"), answer.get("retry-after")), (Some("hi"), Some("1")));
    assert_eq!(answer.headers.iter().filter(|(name, _)| name == "content-type").count(), 1);
    assert_eq!(Answer::new(429).json("{}").get("content-type"), Some("application/json"));
    let elsewhere = Answer::redirect("/wait");
    assert_eq!((elsewhere.status, elsewhere.get("location")), (303, Some("/wait")));
    for (status, sent) in [(429, 429), (200, 200), (0, 429), (100, 429), (600, 429), (u16::MAX, 429)] {
        assert_eq!(Answer::new(status).final_status(), sent);
    }
}

proptest! {
    /// Whatever a rule is called and whatever it says: no header can be ended, and no other begun.
    #[test]
    fn nothing_is_smuggled_into_a_header(name in "(?s).*", text in "(?s).*") {
        let limited = limited(Duration::from_secs(1)).with_message(Some(text.as_str().into()));
        let denied = Decision::deny(5, Micros::from_secs(1));
        let label = label(&name, "5/min");
        let answer = Answer::of_verdict(&limited, [(&label, &denied)], Fields::Ietf)
            .header("x-note", &text)
            .header(&name, "value")
            .header("location", format!("/{text}\r\nset-cookie: a=b"));
        for (name, value) in &answer.headers {
            prop_assert!(!value.chars().any(|sign| sign.is_control() && sign != '\t'));
            prop_assert!(!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b':'));
        }
        prop_assert_eq!(answer.get("set-cookie"), None);
        prop_assert_eq!(&body(&answer)["detail"], &text);
        prop_assert_eq!(&body(&answer)["violated-policies"][0], &name);
    }
}
