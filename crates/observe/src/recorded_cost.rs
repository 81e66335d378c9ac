//! The costs of one request, in the access log and in the history.

use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The cost of one request by one rule that counts tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedCost {
    /// The name of the rule.
    pub rule: Arc<str>,
    /// The cost before the call.
    pub reserved: u64,
    /// The cost that the response stated; `None` if it stated none.
    pub stated: Option<u64>,
}

impl RecordedCost {
    /// The costs by the names of the rules: `{"tokens": {"reserved": 100, "stated": 42}}`; `None` without any.
    pub fn to_json(costs: &[Self]) -> Option<Value> {
        let by_rule = costs.iter().map(|Self { rule, reserved, stated }| {
            let cost = match stated {
                Some(stated) => json!({ "reserved": reserved, "stated": stated }),
                None => json!({ "reserved": reserved }),
            };
            (rule.to_string(), cost)
        });
        (!costs.is_empty()).then(|| Value::Object(by_rule.collect::<Map<_, _>>()))
    }
}
