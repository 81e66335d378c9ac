//! Rules asked by their names: keys are those that requests would have had.

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
  - { name: plans, key: ip, tiers: { by: header x-plan, each: { gold: 5/h, silver: 4/h }, else: 1/h } }
  - { name: lists, deny: [192.0.2.1/32] }
";

fn gate() -> PolicyGate {
    let policy: Policy = RULES.parse().unwrap();
    Compiler::new(Rules::new()).compile(&policy, None).unwrap()
}

/// The key as a store has it, or what is wrong.
fn key(gate: &PolicyGate, rule: &str, given: &Value) -> String {
    let text = given.to_string();
    let given: JsonValue<'_> = serde_json::from_str(&text).unwrap();
    let key =
        gate.rule_by_name(rule).unwrap().parse_key(Some(&given).filter(|given| **given != JsonValue::Null));
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
        ("all", json!("a"), "this rule counts all together; leave `key` out"),
        ("ip", json!("a"), "`a` is not an address; write one, as in `192.0.2.1` or `2001:db8::1`"),
        ("ip", json!(null), "there is no key; give an address as `key`"),
        ("host", json!(":80"), "there is no host in it; write one, as in `example.com`"),
        ("host", json!(""), "the key is empty; give a host as `key`"),
        ("path", json!(["a"]), "the key is not what this rule counts by; give a text"),
        ("cel", json!(null), "there is no key; give a text or a number as `key`"),
        ("pair", json!("a"), "this rule counts by 2 parts; give a list of 2 as `key`"),
        (
            "first",
            json!({"a": "b"}),
            "this rule counts by one of several things; name one of `header x-user`, `cookie user`, `ip`, as in {\"ip\": \"…\"}",
        ),
        ("path", json!("a".repeat(4_097)), "the key is too long; give 4096 bytes at most"),
    ];
    for (rule, given, meant) in cases {
        assert_eq!(key(&gate, rule, &given), meant, "{rule}");
    }
}

#[test]
fn named_rule_reports_quota_kind_and_tier() {
    let gate = gate();
    assert!(gate.rule_by_name("lists").is_none() && gate.rule_by_name("nobody").is_none());
    assert_eq!(gate.rule_names().last(), Some("plans"));
    let holds = |name: &str| gate.rule_by_name(name).unwrap().quota_kind();
    assert_eq!(
        (holds("ip"), holds("path"), holds("cel")),
        (QuotaKind::Tokens, QuotaKind::Slots, QuotaKind::Both)
    );

    let tier = |rule: &str, name: Option<&str>| {
        gate.rule_by_name(rule)
            .unwrap()
            .tier_index(name)
            .map_or_else(|error| error.to_string(), |place| place.to_string())
    };
    let cases = [
        ("ip", None, "0"),
        ("ip", Some("gold"), "this rule has no tiers; leave `tier` out"),
        ("plans", None, "2"),
        ("plans", Some("silver"), "1"),
        ("plans", Some("glod"), "there is no tier `glod`; did you mean `gold`?"),
        ("plans", Some("z"), "there is no tier `z`; use one of `gold`, `silver`, or leave it out"),
    ];
    for (rule, name, meant) in cases {
        assert_eq!(tier(rule, name), meant, "{rule} {name:?}");
    }
}
