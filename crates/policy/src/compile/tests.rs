//! The documented defaults of settings that are compiled are the ones that apply.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::{
    breaker_settings,
    guards::error_rate_settings,
    load::{host_paths, levels, scale_policy},
    reserved_shares,
};
use crate::{
    Policy, PolicyFormat,
    model::{LoadSpec, RuleSpec},
    schema::json_schema,
};
use serde_json::{Map, Value, json};

/// The defaults in the JSON schema.
fn documented(map: &str) -> Map<String, Value> {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let keys = schema["$defs"][map]["properties"].as_object().unwrap();
    keys.iter().filter_map(|(key, value)| Some((key.clone(), value.get("default")?.clone()))).collect()
}

fn parse(policy: &Value) -> Policy {
    Policy::parse(&policy.to_string(), PolicyFormat::Json).unwrap()
}

/// A rule with one more key.
fn rule(key: &str, value: Value) -> RuleSpec {
    let mut rule = json!({ "name": "a", "quota": "1/s" });
    rule[key] = value;
    parse(&json!({ "rules": [rule] })).rules.remove(0)
}

#[test]
fn documented_defaults_of_a_breaker_apply() {
    let breaker =
        |map: Map<String, Value>| breaker_settings(&rule("breaker", map.into()).breaker.unwrap()).unwrap();
    let mut defaults = documented("breaker");
    let max_open_duration = defaults.remove("max-open-duration").unwrap();
    assert_eq!(defaults.len(), 7, "{defaults:?}");
    assert_eq!(breaker(defaults), breaker(Map::new()));
    let backoff = || Map::from_iter([("backoff".to_owned(), json!("x2"))]);
    let mut explicit = backoff();
    explicit.insert("max-open-duration".to_owned(), max_open_duration);
    assert_eq!(breaker(explicit), breaker(backoff()));
}

#[test]
fn documented_defaults_of_the_load_apply() {
    let load = |map: Map<String, Value>| parse(&json!({ "load": map })).load.unwrap();
    let settings = |load: &LoadSpec| (levels(load).unwrap().to_string(), host_paths(load));
    let defaults = documented("load");
    assert_eq!(defaults.len(), 8, "{defaults:?}");
    let explicit = load(defaults);
    assert_eq!(settings(&explicit), settings(&LoadSpec::default()));
    assert_eq!(explicit.interval, Some(tidegate_overload::LoadMonitor::DEFAULT_INTERVAL.into()));
}

#[test]
fn documented_defaults_of_a_scaled_quota_apply() {
    let scale = |map: Map<String, Value>| scale_policy(&rule("scale", map.into()).scale.unwrap()).unwrap();
    assert_eq!(documented("scale").len(), 4);
    assert_eq!(scale(documented("scale")), scale(Map::new()));
}

#[test]
fn documented_defaults_of_while_failing_apply() {
    let failing = |map: Map<String, Value>| {
        error_rate_settings(&rule("while-failing", map.into()).while_failing.unwrap()).unwrap()
    };
    assert_eq!(documented("while-failing").len(), 3);
    assert_eq!(failing(documented("while-failing")), failing(Map::new()));
}

#[test]
fn documented_reserves_apply() {
    let shares = |map: Map<String, Value>| {
        let mut priority = json!({ "key": "header x-priority", "default": "low" });
        priority.as_object_mut().unwrap().extend(map);
        let [critical, high, normal, _] = reserved_shares(&rule("priority", priority)).unwrap();
        [critical, high, normal]
    };
    assert_eq!(documented("priority").len(), 1);
    assert_eq!(shares(documented("priority")), shares(Map::new()));
}
