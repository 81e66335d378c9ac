//! The claims of a verified token.

use serde_json::{Map, Value};
use std::{borrow::Cow, fmt};
use tidegate_rule::body::JsonPointer;

/// The claims of a verified token.
pub struct JwtClaims {
    claims: Value,
}

impl JwtClaims {
    pub(super) fn new(claims: Map<String, Value>) -> Self {
        Self { claims: Value::Object(claims) }
    }

    /// A claim that is a string, a number or a boolean.
    pub fn get(&self, pointer: &JsonPointer) -> Option<Cow<'_, str>> {
        to_text(self.find(pointer)?)
    }

    /// Calls `each` with a claim, or with each item of a list: strings, numbers and booleans.
    pub fn for_each_value(&self, pointer: &JsonPointer, each: &mut dyn FnMut(&str)) {
        let values = match self.find(pointer) {
            Some(Value::Array(items)) => items.as_slice(),
            Some(value) => std::slice::from_ref(value),
            None => &[],
        };
        values.iter().filter_map(to_text).for_each(|value| each(&value));
    }

    fn find(&self, pointer: &JsonPointer) -> Option<&Value> {
        let mut value = &self.claims;
        for token in pointer.tokens() {
            value = match value {
                Value::Object(map) => map.get(token)?,
                Value::Array(items) => items.get(parse_index(token)?)?,
                _ => return None,
            };
        }
        Some(value)
    }
}

fn to_text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(text.as_str().into()),
        Value::Number(number) => Some(number.to_string().into()),
        Value::Bool(is_true) => Some(if *is_true { "true" } else { "false" }.into()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// Shows only the names of the claims.
impl fmt::Debug for JwtClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.claims.as_object().into_iter().flat_map(Map::keys)).finish()
    }
}

fn parse_index(token: &str) -> Option<usize> {
    match token.as_bytes() {
        [b'0'] => Some(0),
        [b'1'..=b'9', ..] => token.parse().ok(),
        _ => None,
    }
}
