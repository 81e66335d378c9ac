//! The schema that editors use: it is the one that is published, and it knows what the reader knows.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::Value;
use std::{env, fs, path::Path};
use tidegate_policy::{Format, Policy, schema::schema};
use tidegate_testkit::strategy::runner_of;

/// Set `TIDEGATE_BLESS` to write it anew.
#[test]
fn the_published_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.schema.json");
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, schema()).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap();
    assert!(published == schema(), "docs/policy.schema.json is old; run this test with TIDEGATE_BLESS=1");
}

#[test]
fn every_policy_is_as_the_schema_says() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let law = |policy: Policy| {
        let value: Value = serde_json::from_str(&policy.print(Format::Json)).unwrap();
        let wrong = check(&schema, &schema, &value, "");
        prop_assert_eq!(wrong, None);
        Ok(())
    };
    runner_of(300).run(&crate::policies::policies(), law).unwrap();
}

#[test]
fn what_the_reader_does_not_know_the_schema_does_not_either() {
    let schema: Value = serde_json::from_str(&schema()).unwrap();
    let cases = [
        (r#"{"rules": {"name": "a", "quota": "5/min", "match": {"not": {"path": "/a"}}}}"#, None),
        (
            r#"{"rules": [{"name": "a", "quota": ["5/min"], "key": [{"first": ["ip", ["user", "host"]]}]}]}"#,
            None,
        ),
        (r#"{"ruels": []}"#, Some("/ruels")),
        (r#"{"rules": [{"name": "a", "quta": "5/min"}]}"#, Some("/rules")),
        (r#"{"templates": {"t": {"name": "a"}}}"#, Some("/templates/t/name")),
        (r#"{"connections": {"most": "many"}}"#, Some("/connections/most")),
        (r#"{"headers": "all"}"#, Some("/headers")),
        (r#"{"lists": {"a": {"networks": "10.0.0.0/8", "file": "x"}}}"#, Some("/lists/a")),
    ];
    for (text, expected) in cases {
        let wrong = check(&schema, &schema, &serde_json::from_str(text).unwrap(), "");
        assert_eq!(wrong.as_deref(), expected, "{text}");
    }
}

/// Where a value is not as a schema says, as far as ours go.
fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    for (word, rule) in schema.as_object().unwrap() {
        let is_wrong = match word.as_str() {
            "$ref" => {
                let found = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                if let Some(wrong) = check(root, found, value, at) {
                    return Some(wrong);
                }
                false
            }
            "type" => {
                let kinds: Vec<_> = match rule {
                    Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
                    kind => vec![kind.as_str().unwrap()],
                };
                !kinds.iter().any(|kind| is_of(value, kind))
            }
            "enum" => !rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()),
            "anyOf" => rule.as_array().unwrap().iter().all(|one| check(root, one, value, at).is_some()),
            "items" => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                items.iter().any(|item| check(root, rule, item, at).is_some())
            }
            "required" => {
                let has = |name: &Value| value.get(name.as_str().unwrap()).is_some();
                value.is_object() && !rule.as_array().unwrap().iter().all(has)
            }
            "properties" | "additionalProperties" => {
                let known = schema.get("properties").and_then(Value::as_object);
                for (name, inner) in value.as_object().into_iter().flatten() {
                    let at = format!("{at}/{name}");
                    let rule =
                        known.and_then(|known| known.get(name)).unwrap_or(&schema["additionalProperties"]);
                    match rule {
                        Value::Bool(false) => return Some(at),
                        rule => {
                            if let Some(wrong) = check(root, rule, inner, &at) {
                                return Some(wrong);
                            }
                        }
                    }
                }
                false
            }
            "$schema" | "$defs" | "title" | "description" | "examples" => false,
            other => panic!("the schema says `{other}`, which this test does not know"),
        };
        if is_wrong {
            return Some(at.to_owned());
        }
    }
    None
}

fn is_of(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other}"),
    }
}
