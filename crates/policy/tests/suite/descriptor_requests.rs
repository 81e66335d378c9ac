//! Descriptors of Envoy, decided by the rules of a policy.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::PolicyTestRequest,
    rules::{expect_ready, gate, rejecting_rule, rejection},
};
use std::path::Path;
use tidegate_policy::{
    Policy,
    compile::{PolicyGate, PolicyResult, RejectReason},
    explain, lint,
};
use tidegate_rule::request::{DescriptorHead, RequestHead};

fn policy(rules: &str) -> Policy {
    format!("envoy: 127.0.0.1:8081\nuser: {{ first: [header x-user, descriptor user] }}\nrules:\n{rules}")
        .parse()
        .unwrap()
}

fn descriptor<const N: usize>(entries: [(&str, &str); N]) -> DescriptorHead {
    DescriptorHead::new("shop", entries)
}

/// The names of the rules that apply.
fn applying(policy: &Policy, head: &dyn RequestHead) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for rule in &explain(policy, head, Path::new("")).unwrap().rules {
        if rule.to_string().contains("` applies\n") {
            names.push(rule.rule.clone());
        }
    }
    // The index finds the same rules as each match by itself.
    let gate = gate(policy);
    let PolicyResult::Admitted(admission) = expect_ready(gate.check(head)) else { panic!("{names:?}") };
    let mut found: Vec<_> = admission.decisions().map(|one| one.rule).collect();
    found.sort_unstable();
    assert_eq!(found.into_iter().map(|rule| policy.rules[rule].name.clone()).collect::<Vec<_>>(), names);
    names
}

#[test]
fn descriptor_meets_no_http_condition_and_a_request_none_on_descriptors() {
    let policy = policy(
        r#"
  - { name: every, quota: 100/s }
  - { name: entry, match: { descriptor: { user: "*" } }, quota: 100/s }
  - { name: values, match: { descriptor: { user: [ann, "b*"], domain: shop } }, quota: 100/s }
  - { name: domain, match: { descriptor: { domain: other } }, quota: 100/s }
  - { name: path, match: { path: /** }, quota: 100/s }
  - { name: method, match: { method: GET }, quota: 100/s }
  - { name: header, match: { header: { user: "*" } }, quota: 100/s }
  - { name: host, match: { host: "*" }, quota: 100/s }
  - { name: when, match: { when: "request.method != 'POST'" }, quota: 100/s }
  - { name: not-path, match: { not: { path: /** } }, quota: 100/s }
  - { name: not-entry, match: { not: { descriptor: { user: "*" } } }, quota: 100/s }
  - { name: either, match: { any: [{ path: /a }, { descriptor: { user: bob } }] }, quota: 100/s }
  - { name: client, match: { client: 192.0.2.0/24 }, quota: 100/s }
"#,
    );
    let cases = [
        (descriptor([]), vec!["every", "not-path", "not-entry"]),
        (descriptor([("user", "ann")]), vec!["every", "entry", "values", "not-path"]),
        (descriptor([("user", "bob")]), vec!["every", "entry", "values", "not-path", "either"]),
        (descriptor([("user", "eve")]), vec!["every", "entry", "not-path"]),
        (descriptor([("user", "")]), vec!["every", "entry", "not-path"]),
        (descriptor([("user", "eve"), ("user", "ann")]), vec!["every", "entry", "values", "not-path"]),
        (descriptor([("remote_address", "192.0.2.7")]), vec!["every", "not-path", "not-entry", "client"]),
        (descriptor([("remote_address", "no address")]), vec!["every", "not-path", "not-entry"]),
        // Only the domain of the request is the domain.
        (descriptor([("domain", "other")]), vec!["every", "not-path", "not-entry"]),
    ];
    for (head, expected) in cases {
        assert_eq!(applying(&policy, &head), expected, "{head:?}");
    }
    let request = PolicyTestRequest::new("GET a.test/a").with_header("user", "ann");
    let expected = ["every", "path", "method", "header", "host", "when", "not-entry", "either", "client"];
    assert_eq!(applying(&policy, &request), expected);
}

/// Counts the descriptors that are admitted until one is denied.
fn admitted(gate: &PolicyGate, head: &DescriptorHead) -> usize {
    (0..20).take_while(|_| rejecting_rule(gate, head).is_empty()).count()
}

#[test]
fn descriptor_is_counted_by_its_entries_and_hits() {
    let gate = gate(&policy(
        "
  - { name: user, match: { descriptor: { user: \"*\" } }, key: user, quota: 3 per 52w }
  - { name: pair, match: { descriptor: { pair: \"*\" } }, key: [descriptor pair, descriptor domain], quota: 2 per 52w }
  - { name: cost, match: { descriptor: { rows: \"*\" } }, cost: { from: descriptor rows, max: 100 }, quota: 10 per 52w }
",
    ));
    let user = |name: &str| descriptor([("user", name)]);
    assert_eq!((admitted(&gate, &user("ann")), admitted(&gate, &user("bob"))), (3, 3));
    assert_eq!(rejecting_rule(&gate, &user("eve").with_hits(2)), "");
    assert_eq!(rejecting_rule(&gate, &user("eve").with_hits(2)), "user");
    assert_eq!(rejecting_rule(&gate, &user("eve")), "", "a denied descriptor costs nothing");
    assert_eq!(rejecting_rule(&gate, &user("new").with_hits(0)), "", "no hits only read the counter");
    assert_eq!(rejecting_rule(&gate, &user("new").with_hits(u64::MAX)), "user");
    assert_eq!(admitted(&gate, &user("new")), 3);
    // An empty entry counts as missing, and a repeated one is rejected.
    assert_eq!((admitted(&gate, &user("")), admitted(&gate, &user("  "))), (3, 0));
    assert_eq!(rejecting_rule(&gate, &descriptor([("user", "x"), ("user", "y")])), "user");

    let pair = |domain: &str| DescriptorHead::new(domain, [("pair", "a")]);
    assert_eq!((admitted(&gate, &pair("shop")), admitted(&gate, &pair("other"))), (2, 2));
    let rows = |rows: &str| descriptor([("rows", rows)]);
    assert_eq!(rejecting_rule(&gate, &rows("3").with_hits(2)), "", "the cost of the rule, for each hit");
    assert_eq!(rejecting_rule(&gate, &rows("5")), "cost");
    assert_eq!(admitted(&gate, &rows("many")), 4, "no number costs 1");
}

#[test]
fn address_of_descriptor_shares_counters_and_lists_with_requests() {
    let shared = gate(&policy("  - { name: each, key: ip, quota: 2 per 52w, deny: 203.0.113.0/24 }\n"));
    let address = |address: &str| descriptor([("remote_address", address)]);
    let request = PolicyTestRequest::new("GET /").with_peer("192.0.2.1");
    assert_eq!(rejecting_rule(&shared, &request), "");
    assert_eq!(admitted(&shared, &address("192.0.2.1")), 1);
    assert_eq!(rejecting_rule(&shared, &request), "each");
    assert_eq!(admitted(&shared, &address("::ffff:192.0.2.2")), 2);
    assert_eq!(admitted(&shared, &address("192.0.2.2")), 0, "the same address");
    assert_eq!(rejecting_rule(&shared, &address("203.0.113.9")), "each", "denied by the list");
    // Without an address, all descriptors are counted together.
    assert_eq!((admitted(&shared, &descriptor([])), admitted(&shared, &descriptor([("a", "b")]))), (2, 0));
}

#[test]
fn descriptor_without_address_is_denied_only_by_deny_all_and_by_bans_of_its_key() {
    let closed = gate(&policy("  - { name: closed, deny: all, allow: 192.0.2.0/24 }\n"));
    assert_eq!(rejecting_rule(&closed, &descriptor([])), "closed");
    assert_eq!(rejecting_rule(&closed, &descriptor([("remote_address", "192.0.2.1")])), "");
    let bans =
        gate(&policy("  - { name: user, key: descriptor user, quota: 1 per 52w, ban: 2/min for 1h }\n"));
    let user = |name: &str| descriptor([("user", name)]);
    let reasons: Vec<_> = (0..5).map(|_| rejection(&bans, &user("ann")).map(|it| it.reason)).collect();
    let limited = Some(RejectReason::Limited);
    assert_eq!(reasons[..3], [None, limited, limited]);
    assert_eq!(reasons[4], Some(RejectReason::Banned));
    assert_eq!(rejecting_rule(&bans, &user("bob")), "");
}

#[test]
fn descriptor_has_no_path_method_upstream_or_expression() {
    for key in ["path", "method", "host", "upstream", "{ cel: 'request.method + request.path' }"] {
        let rule = format!("  - {{ name: a, key: {key}, missing: skip, quota: 1 per 52w }}\n");
        let policy = format!(
            "routes: app\nupstreams: {{ app: 'http://127.0.0.1:9' }}\nenvoy: 127.0.0.1:8081\nrules:\n{rule}"
        );
        assert_eq!(admitted(&gate(&policy.parse().unwrap()), &descriptor([])), 20, "{key}");
    }
}

#[test]
fn explain_describes_a_descriptor() {
    let policy = policy(
        "
  - { name: user, match: { descriptor: { user: \"*\" } }, key: descriptor user, quota: 3/min }
  - { name: login, match: { path: /login }, quota: 3/min }
  - { name: closed, match: { client: 203.0.113.0/24 }, deny: all }
",
    );
    let text = explain(&policy, &descriptor([("user", "ann")]), Path::new("")).unwrap().to_string();
    assert!(
        text.starts_with("descriptor domain=shop user=ann\n  allowed\nrule `user` applies\n  key      ann\n"),
        "{text}"
    );
    assert!(text.contains("rule `login` does not apply: path does not match\n"), "{text}");
    let denied = descriptor([("remote_address", "203.0.113.1")]);
    let denied = explain(&policy, &denied, Path::new("")).unwrap();
    assert_eq!(denied.outcome.rule(), Some("closed"));
    let request = PolicyTestRequest::new("GET /");
    let text = explain(&policy, &request, Path::new("")).unwrap().to_string();
    assert!(text.contains("rule `user` does not apply: descriptor `user` does not match\n"), "{text}");
}

#[test]
fn lint_allows_missing_keys_of_descriptors() {
    let warnings = |policy: &Policy| lint(policy).iter().map(ToString::to_string).collect::<Vec<_>>();
    let rules = "
  - { name: a, key: ip, missing: skip, quota: 1/s }
  - { name: b, key: { first: [ip, descriptor user] }, quota: 2/s burst 3 }
  - { name: c, match: { descriptor: { user: '*' } }, key: descriptor user, quota: 1/s }
";
    assert_eq!(warnings(&policy(rules)), [""; 0]);
    let routed = format!(
        "routes: [{{ path: /api/**, upstream: app }}]\nupstreams: {{ app: 'http://127.0.0.1:9' }}\nenvoy: 127.0.0.1:8081\nrules:{rules}"
    );
    assert_eq!(warnings(&routed.parse().unwrap()), [""; 0]);
}
