//! Validates responses against the OpenAPI document, with the subset of JSON Schema that the document uses.

use serde_json::Value;

/// Resolves a reference.
pub(super) fn resolve_reference<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(place) => document.pointer(place.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

/// The schema of the response to a call, with this status and content type.
pub(super) fn response_schema<'a>(document: &'a Value, call: &str, (status, kind): (u16, &str)) -> &'a Value {
    let responses = &document["paths"][format!("/v1/{call}")]["post"]["responses"];
    let response = resolve_reference(document, &responses[status.to_string()]);
    let schema = &response["content"][kind]["schema"];
    assert!(schema.is_object(), "the document does not describe {call} with {status} {kind}");
    schema
}

/// Returns the first violation of a schema, if any.
pub(super) fn find_violation(document: &Value, schema: &Value, value: &Value) -> Option<String> {
    let schema = resolve_reference(document, schema);
    let violation = |what: &str| Some(format!("{value}: {what} {schema}"));
    let known = &schema["properties"];
    for (keyword, settings) in schema.as_object().unwrap() {
        let is_valid = match keyword.as_str() {
            "description" | "default" => true,
            "type" => match settings {
                Value::Array(names) => names.iter().any(|name| has_type(value, name)),
                name => has_type(value, name),
            },
            "const" => value == settings,
            "enum" => settings.as_array().unwrap().contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= settings.as_f64().unwrap()),
            "required" => {
                settings.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
            }
            "additionalProperties" => {
                assert_eq!(settings, false);
                value.as_object().is_none_or(|members| members.keys().all(|name| known.get(name).is_some()))
            }
            "properties" => {
                let members = value.as_object().into_iter().flatten();
                let inner = members.filter_map(|(name, value)| Some((settings.get(name)?, value)));
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
                    .find_map(|one| find_violation(document, settings, one))
                {
                    Some(inner) => return Some(inner),
                    None => true,
                }
            }
            "oneOf" => {
                let fits = |schema: &&Value| find_violation(document, schema, value).is_none();
                settings.as_array().unwrap().iter().filter(fits).count() == 1
            }
            other => panic!("unsupported keyword `{other}`"),
        };
        if !is_valid {
            return violation(keyword);
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
        other => panic!("unsupported type `{other}`"),
    }
}
