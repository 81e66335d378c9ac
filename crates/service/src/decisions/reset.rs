//! `/v1/reset` resets the counters of a key. It requires the operator token.

use super::{ApiResponse, body::QueryBatch, query::find_rule, reserve::settled_response, state::AppState};
use crate::events;
use http::StatusCode;
use serde_json::json;
use tidegate_http_server::{ApiError, Operator};

/// The members of a query.
pub const MEMBERS: [&str; 2] = ["rule", "key"];

/// Resets the keys in the batch, and logs each key that was reset with the operator.
pub async fn handle(
    state: &AppState,
    batch: QueryBatch<'_>,
    operator: &Operator,
) -> Result<ApiResponse, ApiError> {
    let mut targets = Vec::with_capacity(batch.items.len());
    let active = state.active();
    for members in &batch.items {
        let (named, key) = find_rule(members, &active.gate)?;
        let rule = members.text("rule")?;
        let label = active.recorder.key_label(&active.gate, rule, &key).text();
        targets.push((named.rule().limiter(), key, (rule, label)));
    }
    let mut results = Vec::with_capacity(targets.len());
    for (limiter, key, (rule, label)) in targets {
        let reset = match &limiter {
            None => Ok(()),
            Some(limiter) => limiter.key(&key).reset().await,
        };
        results.push(match reset {
            Ok(()) => {
                events::KeyReset { rule, key: &label, author: &operator.name }.emit();
                Ok(json!({ "reset": true }))
            }
            Err(_) => {
                let problem = "store unavailable; try again later";
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem))
            }
        });
    }
    settled_response(batch.form, results)
}
