//! Changes of rule modes in the policy file, and rollbacks.

use super::{
    AdminState,
    read::{ok_json, unknown_rule},
};
use crate::{ChangeResult, PolicyFile, PolicyFileError, policy_file::mode_json};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_http_server::ApiError;
use tidegate_policy::{compile::JsonValue, edit::EditError, model::RuleEnforcement};
use tidegate_rule::Mode;
use tidegate_service::decisions::{Confirmation, JsonMembers};

impl AdminState {
    /// Sets the mode of a rule.
    pub(super) async fn set_mode(&self, rule: &str, body: &[u8]) -> Result<Response, ApiError> {
        let (to, confirmation) = parse_mode(body)?;
        let config = self.config()?;
        let known = config.policy.rules.iter().find(|known| known.name == rule);
        let from = known.ok_or_else(|| unknown_rule(rule, &config))?.enforcement.clone();
        if to.is_weaker_than(&from) && confirmation == Confirmation::Missing {
            let problem = format!(
                "rule `{rule}` would be enforced for fewer keys ({from} → {to}); send `\"confirm\": true` to apply it anyway"
            );
            return Err(ApiError::new(StatusCode::CONFLICT, problem));
        }
        match self.gateway.set_mode(rule, to.clone()).await.map_err(|error| api_error(&error))? {
            ChangeResult::Changed(change) => {
                Ok(ok_json(&json!({ "changed": true, "change": change.to_json() })))
            }
            ChangeResult::Unchanged => {
                let unchanged =
                    json!({ "changed": false, "rule": rule, "from": mode_json(&from), "to": mode_json(&to) });
                Ok(ok_json(&unchanged))
            }
        }
    }

    /// Reverts the last change.
    pub(super) async fn roll_back(&self, body: &[u8]) -> Result<Response, ApiError> {
        let body = if body.is_empty() { b"{}" } else { body };
        let members = JsonMembers::parse(body, &["id", "confirm"])?;
        let (id, confirmation) = (members.whole_number("id")?, members.confirmation()?);
        if confirmation == Confirmation::Missing
            && let Some(file) = self.config()?.file.clone()
        {
            let read = tokio::task::spawn_blocking(move || PolicyFile::new(file).last_change());
            // Other errors are reported by the rollback itself.
            if let Ok(Ok(last)) = read.await
                && last.from.is_weaker_than(&last.to)
            {
                let (rule, from, to) = (&last.rule, &last.to, &last.from);
                let problem = format!(
                    "rule `{rule}` would be enforced for fewer keys ({from} → {to}); send `\"confirm\": true` to apply it anyway"
                );
                return Err(ApiError::new(StatusCode::CONFLICT, problem));
            }
        }
        match self.gateway.roll_back(id).await.map_err(|error| api_error(&error))? {
            ChangeResult::Changed(change) => {
                Ok(ok_json(&json!({ "changed": true, "change": change.to_json() })))
            }
            ChangeResult::Unchanged => Ok(ok_json(&json!({ "changed": false }))),
        }
    }

    /// Lists the changes, and the one that a rollback would revert.
    pub(super) async fn changes(&self) -> Result<Response, ApiError> {
        let Some(file) = self.config()?.file.clone() else {
            return Ok(ok_json(&json!({ "file": null, "changes": [], "last": null, "reason": null })));
        };
        let path = file.display().to_string();
        let read = tokio::task::spawn_blocking(move || {
            let file = PolicyFile::new(file);
            Ok((file.changes()?, file.last_change()))
        });
        let (changes, last) =
            read.await.unwrap_or(Err(PolicyFileError::GatewayStopped)).map_err(|error| api_error(&error))?;
        let changes: Vec<Value> = changes.iter().map(crate::ModeChange::to_json).collect();
        let (last, reason) = match last {
            Ok(last) => (Some(last.id), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Ok(ok_json(&json!({ "file": path, "changes": changes, "last": last, "reason": reason })))
    }
}

/// `{"mode":"enforce","percent":25,"confirm":true}`
fn parse_mode(body: &[u8]) -> Result<(RuleEnforcement, Confirmation), ApiError> {
    let members = JsonMembers::parse(body, &["mode", "percent", "confirm"])?;
    let mode: Mode =
        members.text("mode")?.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
    let percent =
        match members.get("percent") {
            None | Some(JsonValue::Null) => None,
            Some(given) => {
                let number = if let JsonValue::Number(number) = given { number.as_f64() } else { None };
                Some(number.ok_or_else(|| {
                    ApiError::bad_request("`percent` must be a number above 0 and up to 100")
                })?)
            }
        };
    let to = RuleEnforcement::new(mode, percent).map_err(|error| ApiError::bad_request(error.to_string()))?;
    Ok((to, members.confirmation()?))
}

fn api_error(error: &PolicyFileError) -> ApiError {
    let status = match error {
        PolicyFileError::Edit(EditError::NoRule { .. }) => StatusCode::NOT_FOUND,
        PolicyFileError::ConcurrentChange(_)
        | PolicyFileError::NothingToRevert
        | PolicyFileError::NotLastChange(_)
        | PolicyFileError::Edit(EditError::Policy(_)) => StatusCode::CONFLICT,
        PolicyFileError::Io { .. }
        | PolicyFileError::InvalidHistory { .. }
        | PolicyFileError::RestoreFailed { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        PolicyFileError::GatewayStopped => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    ApiError::new(status, error.to_string())
}
