//! Rules checked by name: keys equal those of requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use serde_json::{Value, json};
use tidegate_policy::{
    Policy,
    compile::{Compiler, JsonValue, PolicyGate, QuotaKind},
};
use tidegate_rule::Rules;

const RULES: &str = "
user: { first: [header x-user, cookie user] }
rules:
  - { name: all, quota: 5/min }
  - { name: ip, key: ip/56, quota: 5/min }
  - { name: host, key: host, quota: 5/min }
  - { name: path, key: path, quota: 2 at once }
  - { name: cel, key: { cel: 'request.path.size()' }, quotas: [5/min, 2 at once] }
  - { name: pair, key: [header x-tenant, ip], quota: 5/min }
  - { name: first, key: { first: [user, ip] }, quota: 5/min }
  - { name: plans, key: ip, tiers: { key: header x-plan, quotas: { gold: 5/h, silver: 4/h }, default: 1/h } }
  - { name: lists, deny: [192.0.2.1/32] }
";

fn gate() -> PolicyGate {
    let policy: Policy = RULES.parse().unwrap();
    Compiler::new(Rules::new()).compile(&policy, None).unwrap()
}

/// The key as in a store, or the error.
fn key(gate: &PolicyGate, rule: &str, value: &Value) -> String {
    let text = value.to_string();
    let json: JsonValue<'_> = serde_json::from_str(&text).unwrap();
    let key =
        gate.rule_by_name(rule).unwrap().parse_key(Some(&json).filter(|json| **json != JsonValue::Null));
    key.map_or_else(|error| error.to_string(), |key| key.to_string())
}

#[test]
fn named_key_equals_request_key() {
    let gate = gate();
    let cases = [
        ("all", json!(null), ""),
        ("ip", json!("192.0.2.1"), "192.0.2.1"),
        ("ip", json!("::ffff:192.0.2.1"), "192.0.2.1"),
        ("ip", json!("2001:db8:1:2ff::1"), "2001:db8:1:200::"),
        ("host", json!("Example.COM.:80"), "example.com"),
        ("path", json!("/a"), "/a"),
        ("path", json!(7), "7"),
        ("path", json!(7.0), "7.0"),
        ("cel", json!(7), "7"),
        ("cel", json!("a"), "a"),
        ("pair", json!(["a|b", "192.0.2.1"]), r"a\|b|192.0.2.1"),
        ("first", json!("ann"), "ann"),
        ("first", json!({"header x-user": "ann"}), "ann"),
        ("first", json!({"cookie user": "ann"}), "\u{1}1?ann"),
        ("first", json!({"ip": "192.0.2.1"}), "\u{1}2?192.0.2.1"),
        ("all", json!("a"), "the rule counts all requests together; omit `key`"),
        ("ip", json!("a"), "invalid address `a`; write one, as in `192.0.2.1` or `2001:db8::1`"),
        ("ip", json!(null), "missing key; use an address as `key`"),
        ("host", json!(":80"), "key without a host; write one, as in `example.com`"),
        ("host", json!(""), "empty key; use a host as `key`"),
        ("path", json!(["a"]), "invalid type of the key; use a string"),
        ("cel", json!(null), "missing key; use a string or an integer as `key`"),
        ("pair", json!("a"), "the key of the rule has 2 parts; use a list of 2 as `key`"),
        (
            "first",
            json!({"a": "b"}),
            "the key of the rule has several alternatives; name one of `header x-user`, `cookie user`, `ip`, as in {\"ip\": \"…\"}",
        ),
        ("path", json!("a".repeat(4_097)), "key too long; use at most 4096 bytes"),
    ];
    for (rule, value, expected) in cases {
        assert_eq!(key(&gate, rule, &value), expected, "{rule}");
    }
}

#[test]
fn named_rule_reports_quota_kind_and_tier() {
    let gate = gate();
    assert!(gate.rule_by_name("lists").is_none() && gate.rule_by_name("unknown").is_none());
    assert_eq!(gate.rule_names().last(), Some("plans"));
    let kind = |name: &str| gate.rule_by_name(name).unwrap().quota_kind();
    assert_eq!(
        (kind("ip"), kind("path"), kind("cel")),
        (QuotaKind::Tokens, QuotaKind::Slots, QuotaKind::Both)
    );

    let tier = |rule: &str, name: Option<&str>| {
        gate.rule_by_name(rule)
            .unwrap()
            .tier_index(name)
            .map_or_else(|error| error.to_string(), |index| index.to_string())
    };
    let cases = [
        ("ip", None, "0"),
        ("ip", Some("gold"), "the rule has no tiers; omit `tier`"),
        ("plans", None, "2"),
        ("plans", Some("silver"), "1"),
        ("plans", Some("glod"), "unknown tier `glod`; did you mean `gold`?"),
        ("plans", Some("z"), "unknown tier `z`; use one of `gold`, `silver`, or omit it"),
    ];
    for (rule, name, expected) in cases {
        assert_eq!(tier(rule, name), expected, "{rule} {name:?}");
    }
}
