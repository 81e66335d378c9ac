//! Whether an answer is one that the OpenAPI document tells of: as much of JSON Schema as the document uses.

use serde_json::Value;

/// What a reference stands for.
pub(super) fn resolve_reference<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(place) => document.pointer(place.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

/// The schema of what is answered to a call, with this status and of this kind.
pub(super) fn response_schema<'a>(document: &'a Value, call: &str, (status, kind): (u16, &str)) -> &'a Value {
    let responses = &document["paths"][format!("/v1/{call}")]["post"]["responses"];
    let response = resolve_reference(document, &responses[status.to_string()]);
    let schema = &response["content"][kind]["schema"];
    assert!(schema.is_object(), "nothing is told of {call} with {status} {kind}");
    schema
}

/// What of a value a schema does not allow; nothing if it allows all of it.
pub(super) fn find_violation(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolve_reference(document, schema);
    let told = |what: &str| Some(format!("{value}: {what} {schema}"));
    let known = &schema["properties"];
    for (keyword, terms) in schema.as_object().unwrap() {
        let is_kept = match keyword.as_str() {
            "description" | "default" => true,
            "type" => match terms {
                Value::Array(names) => names.iter().any(|name| has_type(value, name)),
                name => has_type(value, name),
            },
            "const" => value == terms,
            "enum" => terms.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= terms.as_f64().unwrap()),
            "required" => {
                terms.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "additionalProperties" => {
                assert_eq!(terms, false);
                value.as_object().is_none_or(|members| members.keys().all(|name| known.get(name).is_some()))
            }
            "properties" => {
                let members = value.as_object().into_iter().flatten();
                let inner = members.filter_map(|(name, value)| Some((terms.get(name)?, value)));
                match inner
                    .map(|(schema, value)| find_violation(document, schema, value))
                    .find(Option::is_some)
                {
                    Some(inner) => return inner,
                    None => true,
                }
            }
            "items" => {
                match value
                    .as_array()
                    .into_iter()
                    .flatten()
                    .find_map(|one| find_violation(document, terms, one))
                {
                    Some(inner) => return Some(inner),
                    None => true,
                }
            }
            "oneOf" => {
                let fits = |schema: &&Value| find_violation(document, schema, value).is_none();
                terms.as_array().unwrap().iter().filter(fits).count() == 1
            }
            other => panic!("this test does not know `{other}`"),
        };
        if !is_kept {
            return told(keyword);
        }
    }
    None
}

fn has_type(value: &Value, name: &Value) -> bool {
    match name.as_str().unwrap() {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        "number" => value.is_number(),
        "integer" => value.is_u64() || value.is_i64(),
        other => panic!("this test does not know the type `{other}`"),
    }
}
