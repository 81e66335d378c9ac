//! The texts of the policy reference: all keys are described, and all examples are valid.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use crate::schema::object_schemas;
use serde_json::{Map, Value, json};
use std::{io, path::Path};
use tidegate_policy::{Policy, schema::json_schema};

/// Each key has a description, an example, and a default, unless it is required or its description contains what applies
/// without it.
#[test]
fn every_key_is_described() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let maps = [("policy", &schema)];
    let definitions = schema["$defs"].as_object().unwrap().iter().map(|(name, map)| (name.as_str(), map));
    let mut count = 0;
    for (name, map) in maps.into_iter().chain(definitions) {
        let required = map["required"].as_array().map(Vec::as_slice).unwrap_or_default();
        for (key, value) in map["properties"].as_object().into_iter().flatten() {
            let description = value["description"].as_str().unwrap();
            let is_described = description.len() > "Without it: ".len() && description.ends_with('.');
            assert!(is_described, "{name}.{key}: {description}");
            let has_default = value.get("default").is_some();
            let has_effect = description.contains(" Without it: ");
            let is_required = required.contains(&Value::String(key.clone()));
            let known = [has_default, has_effect, is_required].iter().filter(|known| **known).count();
            assert_eq!(known, 1, "{name}.{key}: a default, an effect without it, or required");
            let example = &value["examples"][0];
            assert!(!example.is_null(), "{name}.{key} has no example");
            assert_ne!(value.get("default"), Some(example), "{name}.{key}: the example is the default");
            count += 1;
        }
    }
    assert!(count > 200, "{count}");
}

/// Reads a policy with each example. The other required keys of its map have their examples.
#[test]
fn every_example_is_valid() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    for (map, keys) in object_schemas(&schema) {
        let definition = if map == "policy" { &schema } else { &schema["$defs"][map] };
        for (key, value) in keys {
            let required =
                definition["required"].as_array().into_iter().flatten().map(|key| key.as_str().unwrap());
            let mut entries: Map<String, Value> =
                required.map(|key| (key.to_owned(), keys[key]["examples"][0].clone())).collect();
            entries.insert(key.clone(), value["examples"][0].clone());
            let policy = policy_with(map, key, entries);
            let text = policy.to_string();
            let files = |path: &Path| match path.to_str() {
                Some("policy.json") => Ok(text.clone().into_bytes()),
                Some("more.yaml") => Ok(b"{}".to_vec()),
                _ => Err(io::ErrorKind::NotFound.into()),
            };
            if let Err(problems) = Policy::read("policy.json", &files) {
                panic!("the example of `{map}.{key}` is invalid: {problems}\n{policy}");
            }
        }
    }
}

/// A policy that contains these entries as the map of this name, with the names that examples refer to.
fn policy_with(map: &str, key: &str, mut entries: Map<String, Value>) -> Value {
    let mut policy = json!({
        "listen": { "name": "internal", "address": "127.0.0.1:8080" },
        "upstreams": { "app": "http://127.0.0.1:9000", "spare": "http://127.0.0.1:9001" },
        "stores": { "sessions": "memory" },
        "features": { "search": "manual" },
        "lists": { "internal": "10.0.0.0/8" },
        "templates": { "api": { "key": "ip" } },
        "identity": { "jwt": "jwks.json", "api-keys": "api-keys.json" },
    });
    let mut rule = |key: &str, value: Value| {
        policy["rules"] = json!([{ "name": "a", "quota": "1/s" }]);
        policy["rules"][0][key] = value;
    };
    // Keys that are valid only together with another one.
    match (map, key) {
        ("breaker", "slow-call-rate") => drop(entries.insert("slow-call-duration".to_owned(), json!("1s"))),
        ("breaker", "slow-call-duration") => drop(entries.insert("slow-call-rate".to_owned(), json!("50%"))),
        ("breaker", "max-open-duration") => drop(entries.insert("backoff".to_owned(), json!("x2"))),
        ("fallback", "status" | "headers") => drop(entries.insert("body".to_owned(), json!("a"))),
        ("respond", "headers" | "body") => drop(entries.insert("status".to_owned(), json!(200))),
        ("settle", "max-debt") => drop(entries.insert("from".to_owned(), json!("openai"))),
        ("api-keys", "from") => drop(entries.insert("file".to_owned(), json!("api-keys.json"))),
        ("jwt", "keys") | ("route", "upstream" | "respond") => {}
        ("jwt", _) => drop(entries.insert("keys".to_owned(), json!("jwks.json"))),
        ("route", _) => drop(entries.insert("upstream".to_owned(), json!("app"))),
        ("rule", "name") => drop(entries.insert("quota".to_owned(), json!("1/s"))),
        ("rule", "quota" | "quotas" | "tiers") => drop(entries.insert("name".to_owned(), json!("a"))),
        ("rule", _) => entries.extend([("name".to_owned(), json!("a")), ("quota".to_owned(), json!("1/s"))]),
        _ => {}
    }
    let entries = Value::Object(entries);
    match map {
        "policy" => policy[key] = entries[key].clone(),
        "adaptive" | "bandwidth" | "breaker" | "charge" | "cost" | "key" | "match" | "on-limit"
        | "priority" | "queue" | "scale" | "settle" | "while-failing" => rule(map, entries),
        "api-key" | "client-cert" => rule("match", json!({ map: entries })),
        "tiers" => policy["rules"] = json!([{ "name": "a", "tiers": entries }]),
        "fallback" => rule("on-limit", json!({ "fallback": entries })),
        "rule" => policy["rules"] = json!([entries]),
        "template" => policy["templates"] = json!({ "api": entries }),
        "admin" | "connections" | "decisions" | "envoy" | "load" | "log" | "metrics" | "observe"
        | "overrides" | "traces" => {
            policy[map] = entries;
        }
        "identity" => policy[map] = entries,
        "jwt" | "api-keys" => policy["identity"] = json!({ map: entries }),
        "listen" => policy["listen"] = entries,
        "tls" => policy["listen"] = json!({ "address": "127.0.0.1:8443", "tls": entries }),
        "token" => policy["decisions"] = json!({ "listen": "127.0.0.1:8090", "tokens": entries }),
        "operator-token" => policy["admin"] = json!({ "listen": "127.0.0.1:9091", "tokens": entries }),
        "feature" => policy["features"] = json!({ "search": entries }),
        "list" => policy["lists"] = json!({ "internal": entries }),
        "route" => policy["routes"] = json!([entries]),
        "respond" => policy["routes"] = json!([{ "respond": entries }]),
        "upstream" => policy["upstreams"] = json!({ "app": entries }),
        "server" => policy["upstreams"] = json!({ "app": { "servers": [entries] } }),
        "health" | "retries" | "timeouts" => {
            policy["upstreams"] = json!({ "app": { "servers": "http://127.0.0.1:9000" } });
            policy["upstreams"]["app"][map] = entries;
        }
        other => panic!("add the place of `{other}` in a policy"),
    }
    policy
}
