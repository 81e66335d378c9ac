//! Changes of rules in the policy file, and rollbacks.

use super::{
    AdminState,
    read::{ok_json, unknown_rule},
};
use crate::{
    ChangeResult, ExpectedValue, PolicyChange, PolicyFile, PolicyFileEdit, PolicyFileError, RuleSetting,
    settings_json,
};
use axum::response::Response;
use http::StatusCode;
use serde_json::{Value, json};
use tidegate_http_server::{ApiError, Operator};
use tidegate_policy::{
    compile::JsonValue,
    edit::EditError,
    model::{OperatorRole, RuleEnforcement},
};
use tidegate_rule::Mode;
use tidegate_service::decisions::{Confirmation, JsonMembers};

impl AdminState {
    /// Sets the mode of a rule.
    pub(super) async fn set_mode(
        &self,
        rule: &str,
        operator: &Operator,
        body: &[u8],
    ) -> Result<Response, ApiError> {
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
        self.apply(RuleSetting::mode(rule, &to), operator).await
    }

    /// Sets a value of a rule.
    pub(super) async fn set_value(
        &self,
        rule: &str,
        operator: &Operator,
        body: &[u8],
    ) -> Result<Response, ApiError> {
        self.apply(parse_setting(rule, body)?, operator).await
    }

    async fn apply(&self, setting: RuleSetting, operator: &Operator) -> Result<Response, ApiError> {
        let RuleSetting { rule, key, value, .. } = setting.clone();
        Ok(ok_json(&match self.change(PolicyFileEdit::Set(setting), operator).await? {
            ChangeResult::Changed(change) => json!({ "changed": true, "change": change.to_json() }),
            ChangeResult::Unchanged => json!({ "changed": false, "rule": rule, "key": key, "to": value }),
        }))
    }

    async fn change(&self, edit: PolicyFileEdit, operator: &Operator) -> Result<ChangeResult, ApiError> {
        let change = PolicyChange { author: operator.name.clone(), edit };
        self.gateway.change_policy(change).await.map_err(|error| api_error(&error))
    }

    /// Lists the values of a rule that can be set.
    pub(super) async fn values(&self, rule: String) -> Result<Response, ApiError> {
        let file = self.config()?.file.clone().ok_or_else(|| api_error(&PolicyFileError::NoFile))?;
        let name = rule.clone();
        let read = tokio::task::spawn_blocking(move || PolicyFile::new(file).values_of(&name));
        let values = read.await.unwrap_or(Err(PolicyFileError::GatewayStopped));
        let values = values.map_err(|error| api_error(&error))?;
        Ok(ok_json(&settings_json(&rule, &values)))
    }

    /// Reverts the last change.
    pub(super) async fn roll_back(&self, operator: &Operator, body: &[u8]) -> Result<Response, ApiError> {
        let body = if body.is_empty() { b"{}" } else { body };
        let members = JsonMembers::parse(body, &["id", "confirm"])?;
        let (mut id, confirmation) = (members.whole_number("id")?, members.confirmation()?);
        if let Some(file) = self.config()?.file.clone() {
            let read = tokio::task::spawn_blocking(move || PolicyFile::new(file).last_change());
            let last = read.await.unwrap_or(Err(PolicyFileError::GatewayStopped));
            let last = last.map_err(|error| api_error(&error))?;
            if id.is_some_and(|id| id != last.id) {
                return Err(api_error(&PolicyFileError::NotLastChange(last.id)));
            }
            match last.modes() {
                // The mode before the change is in force after the rollback.
                Some((to, from)) if confirmation == Confirmation::Missing && to.is_weaker_than(&from) => {
                    let rule = &last.rule;
                    let problem = format!(
                        "rule `{rule}` would be enforced for fewer keys ({from} → {to}); send `\"confirm\": true` to apply it anyway"
                    );
                    return Err(ApiError::new(StatusCode::CONFLICT, problem));
                }
                Some(_) => {}
                None => drop(operator.clone().require(OperatorRole::Admin)?),
            }
            // Only the change that was checked is reverted.
            id = Some(last.id);
        }
        match self.change(PolicyFileEdit::RollBack(id), operator).await? {
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
        let changes: Vec<Value> = changes.iter().map(crate::RuleChange::to_json).collect();
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

/// `{"key":"quota","value":"200/min","from":"100/min"}`
pub(super) fn parse_setting(rule: &str, body: &[u8]) -> Result<RuleSetting, ApiError> {
    let members = JsonMembers::parse(body, &["key", "value", "from"])?;
    let (key, value) = (members.text("key")?.to_owned(), members.text("value")?.to_owned());
    if key == "mode" {
        return Err(ApiError::bad_request(format!("use `/api/v1/rules/{rule}/mode` for the mode")));
    }
    let from = match members.get("from") {
        None => ExpectedValue::Any,
        Some(JsonValue::Null) => ExpectedValue::Only(None),
        Some(_) => ExpectedValue::Only(Some(members.text("from")?.to_owned())),
    };
    Ok(RuleSetting { rule: rule.to_owned(), key, value, from })
}

pub(super) fn api_error(error: &PolicyFileError) -> ApiError {
    let status = match error {
        PolicyFileError::Edit(EditError::NoRule { .. }) => StatusCode::NOT_FOUND,
        PolicyFileError::ConcurrentChange(_)
        | PolicyFileError::Conflict { .. }
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
