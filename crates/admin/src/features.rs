//! `/api/v1/features`: the features of the policy, and their overrides by operators.

use super::{AdminState, bans::parse_reason, read::ok_json};
use crate::{FeatureChange, FeatureError};
use axum::response::Response;
use http::StatusCode;
use serde_json::json;
use tidegate_http_server::{ApiError, Operator, truncate};
use tidegate_observe::feature_json;
use tidegate_overload::FeatureOverride;
use tidegate_service::decisions::JsonMembers;

impl AdminState {
    /// Lists the features, the most important first.
    pub(super) fn features(&self) -> Result<Response, ApiError> {
        let features = self.config()?.gate.features().list();
        let features: Vec<_> = features.iter().map(feature_json).collect();
        Ok(ok_json(&json!({ "features": features })))
    }

    /// Turns a feature on or off, or clears its override.
    pub(super) async fn set_feature(
        &self,
        name: &str,
        operator: &Operator,
        body: &[u8],
    ) -> Result<Response, ApiError> {
        let (to, reason) = parse_state(body)?;
        let change = FeatureChange { feature: name.to_owned(), to, reason, author: operator.name.clone() };
        match self.gateway.set_feature(change).await {
            Ok(status) => Ok(ok_json(&feature_json(&status))),
            Err(FeatureError::Unknown(error)) => {
                let problem = format!("unknown feature `{}`; {}", truncate(name), error.fix());
                Err(ApiError::new(StatusCode::NOT_FOUND, problem))
            }
            Err(error) => Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
        }
    }
}

/// `{"state":"off","reason":"too slow"}`
fn parse_state(body: &[u8]) -> Result<(FeatureOverride, Option<String>), ApiError> {
    let members = JsonMembers::parse(body, &["state", "reason"])?;
    let state = members.text("state")?.parse();
    let state = state.map_err(|_| ApiError::bad_request("`state` must be `on`, `off` or `auto`"))?;
    Ok((state, parse_reason(&members)?))
}
