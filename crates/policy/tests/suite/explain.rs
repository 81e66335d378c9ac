//! Explanations of what a policy does with a request.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::{MatchExt as _, PolicyTestRequest, any_request},
    rules::{access, header, ip, policy, rule},
};
use std::{collections::BTreeMap, path::Path, time::Duration};
use tidegate_limiter::FailureMode;
use tidegate_policy::{
    explain,
    model::{OnLimit, OverrideLocation, Policy, Quotas, RouteSpec, RuleEnforcement, RuleSpec, Stores, Tiers},
};
use tidegate_rule::Mode;

fn sample_policy() -> Policy {
    let tiers = Tiers {
        key: header("x-plan"),
        quotas: vec![("gold".to_owned(), "1000/s".parse().unwrap())],
        default: "10/s".parse().unwrap(),
    };
    let named = BTreeMap::from([("far".to_owned(), "redis://:hunter2@far".to_owned())]);
    Policy {
        routes: vec![RouteSpec::forward(any_request(), "app")],
        stores: Stores { default: Some("redis://:$SECRET@db".to_owned()), named, ..Stores::default() },
        rules: vec![
            RuleSpec {
                key: ip(),
                matching: any_request().method("POST").path("/login"),
                failure_mode: Some(FailureMode::Closed),
                ..rule("login", &["5/min", "20/h fixed-window"])
            },
            RuleSpec {
                key: header("x-user"),
                quotas: Quotas::Tiers(tiers),
                on_limit: OnLimit::Drop,
                ..rule("plans", &[])
            },
            RuleSpec {
                store: Some("far".to_owned()),
                enforcement: RuleEnforcement::All(Mode::Shadow),
                ..rule("all", &["3 at once"])
            },
            RuleSpec { access: Some(access(&["198.51.100.0/24"], &[], None)), ..rule("lists", &[]) },
            RuleSpec { wait: Duration::from_secs(2), ..rule("shaped", &["1/s leaky-bucket queue 5"]) },
            RuleSpec { enforcement: RuleEnforcement::All(Mode::Off), ..rule("old", &["1/s"]) },
            RuleSpec { matching: any_request().header("x-plan", "free"), ..rule("free", &["1/s"]) },
        ],
        ..Policy::default()
    }
}

#[test]
fn explain_describes_every_rule() {
    let request = PolicyTestRequest::new("POST a.test//login").with_header("x-plan", "gold");
    let text = explain(&sample_policy(), &request, Path::new("")).unwrap().to_string();
    let expected = "\
POST a.test//login from 192.0.2.1
  forwarded to `app`
rule `login` applies
  path     /login
  key      192.0.2.1
  mode     enforce
  cost     1
  counted  in the default store: the bound holds for all processes together; while it is unavailable all requests are denied
  quota    5/min
    bound  at most 5 at once and 5/min on top: 10 in any 1min
    over   429, retry-after: 12, content-type: application/problem+json
  quota    20/h fixed-window
    bound  at most 40 in any 1h
    over   429, retry-after: 3599, content-type: application/problem+json
rule `plans` applies
  key      missing: counted by the address 192.0.2.1
  mode     enforce
  tier     gold
  cost     1
  counted  in the default store: the bound holds for all processes together; while it is unavailable each \
process counts its own requests: at worst the bound times the number of processes
  quota    1000/s
    bound  at most 1000 at once and 1000/s on top: 2000 in any 1s
    over   the connection is closed
rule `all` applies
  key      all requests together
  mode     shadow
  cost     1
  counted  in the store `far`: the bound holds for all processes together; while it is unavailable each \
process counts its own requests: at worst the bound times the number of processes
  quota    3 at once
    bound  at most 3 in flight
    over   admitted, and recorded
rule `lists` applies
  key      all requests together
  mode     enforce
  lists    no match
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.contains("rule `old` is off\n"), "{text}");
    assert!(text.ends_with("rule `free` does not apply: header `x-plan` does not match\n"), "{text}");
    assert!(!text.contains("redis") && !text.contains("hunter2") && !text.contains("SECRET"), "{text}");
}

#[test]
fn explain_fails_for_invalid_policy() {
    let wrong = policy([RuleSpec { matching: any_request().when("1 +"), ..rule("one", &["1/s"]) }]);
    assert!(explain(&wrong, &PolicyTestRequest::new("GET /"), Path::new("")).is_err());
}

#[test]
fn explain_names_charge_ban_schedule_bandwidth_and_adaptive_limit() {
    let policy: Policy = "\
rules:
  - { name: login, key: header x-user, quota: 5/min, charge: { if-status: [401, 5xx] }, ban: 10/min for 1h }
  - { name: night, key: ip, quota: 10/min, schedule: 00:00-24:00 x2 }
  - { name: bytes, key: ip, bandwidth: 1MB/s }
  - { name: late, key: ip, bandwidth: { down: 1MB/s after 5MB, up: 10kB/s }, schedule: 00:00-24:00 x2 }
  - { name: load, adaptive: { target: 250ms, min: 4, max: 200 } }
"
    .parse()
    .unwrap();
    let request = PolicyTestRequest::new("POST /login").with_header("x-user", "ann");
    let text = explain(&policy, &request, Path::new("")).unwrap().to_string();
    for line in [
        "  charge   only if the status is 401, 5xx; otherwise refunded",
        "  ban      10/min sliding-log for 1h: `ann`, not banned now",
        "  quota    20/min by the schedule, 10/min without it",
        "    bound  at most 20 at once and 20/min on top: 40 in any 1min",
        "  bandwidth down 1MB/s: slowed down, never rejected",
        "  bandwidth down 2MB/s by the schedule, 1MB/s after 5MB without it, up 20kB/s by the schedule, 10kB/s without it: slowed down, never rejected",
        "  adaptive starts at 20 in flight, then 4 to 200 depending on latency, target 250ms; over the limit 503",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line}: {text}");
    }
    let without =
        explain(&policy, &PolicyTestRequest::new("POST /login"), Path::new("")).unwrap().to_string();
    assert!(without.contains("  key      missing: counted by the address 192.0.2.1\n"), "{without}");
}

#[test]
fn explain_evaluates_lists_and_keys() {
    let policy: Policy = "\
lists: { internal: [203.0.113.0/24] }
rules:
  - { name: closed, match: { path: /internal/** }, deny: all, allow: internal }
  - { name: wanted, match: { path: /api/** }, key: header x-user, missing: reject, quota: 5/min }
  - { name: dear, match: { path: /dear }, quota: 5/min, cost: 6 }
  - { name: watched, match: { path: /watched }, deny: all, mode: shadow }
"
    .parse()
    .unwrap();
    let outcome = |request: &str, peer: &str| {
        let explained =
            explain(&policy, &PolicyTestRequest::new(request).with_peer(peer), Path::new("")).unwrap();
        (explained.outcome.status(), explained.outcome.rule().unwrap_or_default().to_owned())
    };
    let no_route = (Some(404), String::new());
    assert_eq!(outcome("GET /internal/x", "192.0.2.1"), (Some(403), "closed".to_owned()));
    assert_eq!(outcome("GET /internal/x", "203.0.113.7"), no_route);
    assert_eq!(outcome("GET /api/x", "192.0.2.1"), (Some(400), "wanted".to_owned()));
    assert_eq!(outcome("GET /dear", "192.0.2.1"), (Some(429), "dear".to_owned()));
    assert_eq!(outcome("GET /watched", "192.0.2.1"), no_route);
}

#[test]
fn explain_names_guards_and_fallbacks() {
    let policy: Policy = "\
features: { catalog: manual }
upstreams: { app: http://127.0.0.1:1 }
routes: app
rules:
  - name: pages
    quota: 100/min
    wait: 1s
    scale: { min: x0.2 }
    shed: { normal: 80% }
    feature: catalog
    while-failing: { min-calls: 10, failure-rate: 20%, window-size: 5s }
    breaker: { failure-rate: 50% }
    priority: { key: header x-priority, default: normal, reserve: { critical: 10% } }
    on-limit: { fallback: { cache: 10min, body: '[]' } }
"
    .parse()
    .unwrap();
    let text = explain(&policy, &PolicyTestRequest::new("GET /"), Path::new("")).unwrap().to_string();
    for line in [
        "  scale    the quotas shrink to x0.2 while the load of the machine is high",
        "  shed     503 while the load of the machine is above 80%",
        "  feature  rejected while `catalog` is off",
        "  while-failing the quotas apply after more than 10 calls in 5s, if more than 20% of them fail",
        "  fallback the last good response, if one of at most 10min is stored",
        "  breaker  initially closed; 503 while open",
        "  priority normal; 10% of the quotas is reserved for higher priorities",
        "  wait     up to 1s for capacity",
    ] {
        assert!(text.lines().any(|found| found == line), "no line {line}: {text}");
    }
}

#[test]
fn explain_names_the_override_of_the_key() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("overrides.jsonl");
    let line = |change: u64, key: &str, quota: &str, until: &str| {
        format!(
            "{{\"change\":{change},\"time\":\"2026-11-20T00:00:00Z\",\"by\":\"ann\",\"rule\":\"users\",\"key\":\"{key}\",\
             \"quota\":\"{quota}\",\"until\":\"{until}\",\"reason\":\"migration\"}}\n"
        )
    };
    let lines = [
        line(1, "alice", "9/min", "2200-01-01T00:00:00Z"),
        line(2, "alice", "7/min", "2200-01-01T00:00:00Z"),
        line(3, "bob", "7/min", "2020-01-01T00:00:00Z"),
        line(4, "eve", "7 at once", "2200-01-01T00:00:00Z"),
    ];
    // The last change was not confirmed.
    let cut_off = "{\"change\":5,\"time\":\"2026";
    std::fs::write(&file, lines.concat() + cut_off).unwrap();
    let users = RuleSpec { key: header("x-user"), ..rule("users", &["5/min"]) };
    let policy = Policy {
        overrides: Some(OverrideLocation::File(file.clone())),
        rules: vec![users],
        ..Policy::default()
    };
    let explained = |user: &str| {
        let request = PolicyTestRequest::new("GET a.test/").with_header("x-user", user);
        explain(&policy, &request, Path::new("")).unwrap().to_string()
    };
    let alice = explained("alice");
    assert!(alice.contains("  quota    7/min\n"), "{alice}");
    let line =
        "  override 7/min until 2200-01-01T00:00:00.000000Z, in place of the quota of the rule: migration\n";
    assert!(alice.contains(line), "{alice}");
    for user in ["bob", "eve", "dan"] {
        let text = explained(user);
        assert!(text.contains("  quota    5/min\n") && !text.contains("override"), "{text}");
    }
    std::fs::write(&file, "{}\n").unwrap();
    let request = PolicyTestRequest::new("GET a.test/");
    let error = explain(&policy, &request, Path::new("")).unwrap_err().to_string();
    assert!(error.contains("overrides.jsonl: line 1: invalid `key`; correct the line"), "{error}");
}
