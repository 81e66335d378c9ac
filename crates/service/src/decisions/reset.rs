//! `/v1/reset` resets the counters of a key. It requires the operator token.

use super::{ApiResponse, body::QueryBatch, query::find_rule, reserve::settled_response, state::AppState};
use http::StatusCode;
use serde_json::json;
use tidegate_http_server::ApiError;

/// The members of a query.
pub const MEMBERS: [&str; 2] = ["rule", "key"];

/// Resets the keys in the batch.
pub async fn handle(state: &AppState, batch: QueryBatch<'_>) -> Result<ApiResponse, ApiError> {
    let mut targets = Vec::with_capacity(batch.items.len());
    let active = state.active();
    for members in &batch.items {
        let (named, key) = find_rule(members, &active.gate)?;
        targets.push((named.rule().limiter(), key));
    }
    let mut results = Vec::with_capacity(targets.len());
    for (limiter, key) in targets {
        let reset = match &limiter {
            None => Ok(()),
            Some(limiter) => limiter.key(&key).reset().await,
        };
        results.push(match reset {
            Ok(()) => Ok(json!({ "reset": true })),
            Err(_) => {
                let problem = "store unavailable; try again later";
                Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, problem))
            }
        });
    }
    settled_response(batch.form, results)
}
