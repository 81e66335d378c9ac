//! The JSON schema: the published one is current, and agrees with the reader and the documentation.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs, iter,
    path::Path,
};
use tidegate_policy::{Policy, PolicyFormat, schema::json_schema};
use tidegate_testkit::{error_texts::visit_files, strategy::runner_with_cases};

/// Set `TIDEGATE_BLESS` to regenerate it.
#[test]
fn published_schema_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/policy.schema.json");
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(&path, json_schema()).unwrap();
    }
    let published = fs::read_to_string(&path).unwrap();
    assert!(
        published == json_schema(),
        "docs/policy.schema.json is outdated; run this test with TIDEGATE_BLESS=1"
    );
}

#[test]
fn random_policies_validate_against_schema() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let property = |policy: Policy| {
        let value: Value = serde_json::from_str(&policy.print(PolicyFormat::Json)).unwrap();
        let wrong = validate(&schema, &schema, &value, "");
        prop_assert_eq!(wrong, None);
        Ok(())
    };
    runner_with_cases(300).run(&crate::strategies::policies(), property).unwrap();
}

#[test]
fn schema_rejects_invalid_policies() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let cases = [
        (r#"{"rules": {"name": "a", "quota": "5/min", "match": {"not": {"path": "/a"}}}}"#, None),
        (
            r#"{"rules": [{"name": "a", "quota": ["5/min"], "key": [{"first": ["ip", ["user", "host"]]}]}]}"#,
            None,
        ),
        (r#"{"ruels": []}"#, Some("/ruels")),
        (r#"{"rules": [{"name": "a", "quta": "5/min"}]}"#, Some("/rules")),
        (r#"{"templates": {"t": {"name": "a"}}}"#, Some("/templates/t/name")),
        (r#"{"connections": {"max": "many"}}"#, Some("/connections/max")),
        (r#"{"headers": "all"}"#, Some("/headers")),
        (r#"{"lists": {"a": {"networks": "10.0.0.0/8", "file": "x"}}}"#, Some("/lists/a")),
    ];
    for (text, expected) in cases {
        let wrong = validate(&schema, &schema, &serde_json::from_str(text).unwrap(), "");
        assert_eq!(wrong.as_deref(), expected, "{text}");
    }
}

/// All object schemas with their names and keys.
pub(crate) fn object_schemas(schema: &Value) -> Vec<(&str, &Map<String, Value>)> {
    let definitions = schema["$defs"].as_object().unwrap().iter().map(|(name, table)| (name.as_str(), table));
    let all = iter::once(("policy", schema)).chain(definitions);
    all.filter_map(|(name, table)| Some((name, table.get("properties")?.as_object()?))).collect()
}

/// `scripts/keys` writes the page. It runs the tests with one key ignored, and takes one that fails.
#[test]
fn every_key_has_a_test_that_fails_without_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/policy-keys.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let tests: BTreeMap<_, _> =
        rows.map(|row| (row.split('`').nth(1).unwrap(), row.rsplit('`').nth(1).unwrap())).collect();

    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let schemas = object_schemas(&schema);
    let (_, match_keys) = schemas.iter().find(|(name, _)| *name == "match").unwrap();
    // A template has the keys of a rule, and a route the keys of `match`.
    let is_shared =
        |table: &str, key: &String| table == "template" || table == "route" && match_keys.contains_key(key);
    let keys: BTreeSet<_> = schemas
        .iter()
        .flat_map(|(table, keys)| keys.keys().map(move |key| (*table, key)))
        .filter(|(table, key)| !is_shared(table, key))
        .map(|(table, key)| format!("{table}.{key}"))
        .collect();
    let listed: BTreeSet<_> = tests.keys().map(|key| (*key).to_owned()).collect();
    assert_eq!(listed, keys, "run `scripts/keys` with the keys that differ");

    let mut functions = BTreeSet::new();
    for (program, folder) in [("gateway", "gateway/tests/suite"), ("cli", "cli/tests")] {
        visit_files(&root.join("crates").join(folder), &mut |_, text| {
            let names =
                text.split("fn ").skip(1).filter_map(|rest| rest.split_once('(')).map(|(name, _)| name);
            functions.extend(names.map(|name| (program, name.to_owned())));
        });
    }
    for (key, test) in tests {
        let (program, name) = (test.split("::").next().unwrap(), test.rsplit("::").next().unwrap());
        assert!(
            functions.contains(&(program, name.to_owned())),
            "{key}: there is no test `{test}`; run `scripts/keys {key}`"
        );
    }
}

/// The keys that a page documents: as `key:` in an example, or as `key` or `table.key` in backticks. Comments do not count.
fn documented_keys(page: &str) -> BTreeSet<&str> {
    let mut shown = BTreeSet::new();
    for (index, block) in page.split("```").enumerate() {
        let pieces: Vec<_> = match index % 2 {
            1 => block.lines().skip(1).map(|line| line.split(" #").next().unwrap()).collect(),
            _ => block.split('`').skip(1).step_by(2).collect(),
        };
        for piece in pieces {
            let is_part = |c: char| c.is_alphanumeric() || c == '-';
            let before_colons = piece.match_indices(':').map(|(at, _)| &piece[..at]);
            let names = before_colons.map(|text| text.rsplit(|c| !is_part(c)).next().unwrap());
            shown.extend(names.chain((index % 2 == 0).then(|| piece.rsplit('.').next().unwrap())));
        }
    }
    shown
}

#[test]
fn every_key_of_the_schema_is_documented() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let shown = documented_keys(include_str!("../../../../docs/policy.md"));
    let missing: BTreeSet<_> = object_schemas(&schema)
        .into_iter()
        .flat_map(|(table, keys)| keys.keys().map(move |key| (key.as_str(), table)))
        .filter(|(key, _)| !shown.contains(key))
        .collect();
    assert!(missing.is_empty(), "docs/policy.md does not show these keys: {missing:?}");
    let example = "Prose: `a.b`, `{ c: 1 }`, `d e`\n```yaml\nf: { x-g: 1 }  # h: 1\n```\n`i`";
    let shown = self::documented_keys(example);
    assert!(["b", "c", "f", "i", "x-g"].iter().all(|key| shown.contains(key)), "{shown:?}");
    assert!(["Prose", "d", "e", "g", "h"].iter().all(|key| !shown.contains(key)), "{shown:?}");
}

/// Defaults that apply when a policy is compiled. `compile/tests.rs` compares those of other maps, which are not here.
const IS_COMPILED: [(&str, &str); 9] = [
    ("policy", "listen"),
    ("policy", "store"),
    ("policy", "prefix"),
    ("policy", "deadline"),
    ("policy", "failure-mode"),
    ("policy", "feature-recovery"),
    ("queue", "max-total"),
    ("rule", "capacity"),
    ("rule", "queue"),
];

/// A policy with all defaults written out equals one without them.
#[test]
fn defaults_of_the_schema_are_those_of_the_reader() {
    let schema: Value = serde_json::from_str(&json_schema()).unwrap();
    let defaults = |table: &str| -> Map<String, Value> {
        let (_, keys) = object_schemas(&schema).into_iter().find(|(name, _)| *name == table).unwrap();
        let with_default = keys.iter().filter_map(|(key, about)| Some((key.clone(), about.get("default")?)));
        let with_default = with_default.filter(|(key, _)| !IS_COMPILED.contains(&(table, key.as_str())));
        with_default.map(|(key, default)| (key, default.clone())).collect()
    };
    let with = |table: &str, more: Value| {
        let mut all = defaults(table);
        all.extend(more.as_object().unwrap().clone());
        all
    };
    let server = with("server", json!({ "url": "http://127.0.0.1:9000" }));
    let health = json!({ "path": "/healthz" });
    let upstream = json!({
        "servers": [server],
        "timeouts": defaults("timeouts"),
        "retries": defaults("retries"),
        "health": with("health", health.clone()),
    });
    let endpoint = json!({ "endpoint": "http://127.0.0.1:4318" });
    let respond = json!({ "redirect": "/a", "status": 302 });
    let redirect = json!({ "redirect": "/a", "status": 303 });
    let cost = json!({ "from": "header x-cost", "max": 5 });
    let rule = json!({ "name": "a", "quota": "1/s", "queue": with("queue", json!({ "max": 5 })) });
    let costly =
        json!({ "name": "b", "quota": "1/s", "cost": with("cost", cost.clone()), "on-limit": redirect });
    let fallback = json!({ "fallback": with("fallback", json!({ "body": "a" })) });
    let explicit = with(
        "policy",
        json!({
            "connections": defaults("connections"),
            "log": defaults("log"),
            "observe": defaults("observe"),
            "traces": with("traces", endpoint.clone()),
            "metrics": with("metrics", endpoint.clone()),
            "upstreams": { "app": with("upstream", upstream) },
            "routes": { "respond": respond },
            "rules": [
                with("rule", rule),
                with("rule", json!({ "name": "c", "quota": "1/s", "on-limit": fallback })),
                costly,
            ],
        }),
    );
    let implicit = json!({
        "traces": endpoint,
        "metrics": endpoint,
        "upstreams": { "app": { "servers": "http://127.0.0.1:9000", "health": health } },
        "routes": { "respond": { "redirect": "/a" } },
        "rules": [
            { "name": "a", "quota": "1/s", "queue": { "max": 5 } },
            { "name": "c", "quota": "1/s", "on-limit": { "fallback": { "body": "a" } } },
            { "name": "b", "quota": "1/s", "cost": cost, "on-limit": { "redirect": "/a" } },
        ],
    });
    let read = |value: String| Policy::parse(&value, PolicyFormat::Json).unwrap();
    assert_eq!(read(Value::Object(explicit).to_string()), read(implicit.to_string()));
}

/// Returns the path of the first value that violates the schema. Supports the keywords that our schema uses.
fn validate(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    for (word, rule) in schema.as_object().unwrap() {
        let is_wrong = match word.as_str() {
            "$ref" => {
                let found = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                if let Some(wrong) = validate(root, found, value, at) {
                    return Some(wrong);
                }
                false
            }
            "type" => {
                let kinds: Vec<_> = match rule {
                    Value::Array(kinds) => kinds.iter().map(|kind| kind.as_str().unwrap()).collect(),
                    kind => vec![kind.as_str().unwrap()],
                };
                !kinds.iter().any(|kind| is_of_type(value, kind))
            }
            "enum" => !rule.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_some_and(|number| number < rule.as_f64().unwrap()),
            "anyOf" => rule.as_array().unwrap().iter().all(|one| validate(root, one, value, at).is_some()),
            "items" => {
                let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
                items.iter().any(|item| validate(root, rule, item, at).is_some())
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
                            if let Some(wrong) = validate(root, rule, inner, &at) {
                                return Some(wrong);
                            }
                        }
                    }
                }
                false
            }
            "default" => {
                let mut schema = schema.clone();
                schema.as_object_mut().unwrap().remove("default");
                assert_eq!(
                    validate(root, &schema, rule, at),
                    None,
                    "the default {rule} is not valid at {at}"
                );
                false
            }
            "$schema" | "$defs" | "title" | "description" | "examples" => false,
            other => panic!("unsupported schema keyword `{other}`"),
        };
        if is_wrong {
            return Some(at.to_owned());
        }
    }
    None
}

fn is_of_type(value: &Value, kind: &str) -> bool {
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
