//! `/api/v1/overrides`: quotas of single keys, until they end.

use super::{
    AdminState,
    bans::parse_reason,
    events,
    overrides::{ExpectedOverride, OverrideEdit, OverrideError, OverridePage},
    read::{ok_json, unknown_rule},
};
use axum::response::Response;
use http::{StatusCode, Uri};
use serde_json::json;
use std::sync::Arc;
use tidegate_core::{Micros, Quota, Utc};
use tidegate_http_server::{ApiError, Operator, Query};
use tidegate_policy::{
    compile::JsonValue,
    overrides::{OverriddenKey, OverrideQuota, OverrideValue},
};
use tidegate_service::decisions::JsonMembers;

/// The longest override.
const MAX_SECONDS: u64 = 366 * 86_400;
const FIELDS: [&str; 7] = ["rule", "key", "quota", "until", "seconds", "reason", "from"];
const UNKNOWN_ID: &str = "no such override; it may have ended";

impl AdminState {
    /// Lists overrides.
    pub(super) fn overrides(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "key", "after", "limit"])?;
        let after = query.text("after").map(parse_id).transpose()?;
        let (rule, limit) = (query.text("rule"), query.number("limit", 1..=1_000, 100)?);
        let key = match (query.text("key"), rule) {
            (None, _) => None,
            (Some(_), None) => return Err(ApiError::bad_request("`key` without `rule`; send both")),
            (Some(key), Some(rule)) => Some(self.key_text(rule, key)?),
        };
        let page = OverridePage { rule, key: key.as_deref(), after, limit };
        Ok(ok_json(&self.overrides.page(&page)))
    }

    /// Lists the last changes.
    pub(super) async fn override_changes(&self) -> Result<Response, ApiError> {
        Ok(ok_json(&self.overrides.changes().await.map_err(|error| api_error(&error))?))
    }

    /// Sets the quota of a key until an end.
    pub(super) async fn set_override(&self, operator: &Operator, body: &[u8]) -> Result<Response, ApiError> {
        let members = JsonMembers::parse(body, &FIELDS)?;
        self.reject_hashed_key(&members)?;
        let (rule, config) = (members.text("rule")?, self.config()?);
        let named = config.gate.rule_by_name(rule).ok_or_else(|| unknown_rule(rule, &config))?;
        let json = members.get("key").unwrap_or(&JsonValue::Null);
        let key = named.parse_key(Some(json)).map_err(|error| ApiError::bad_request(error.to_string()))?;
        let quota = members
            .text("quota")?
            .parse::<Quota>()
            .map_err(|error| ApiError::bad_request(format!("`quota`: {error}")))?;
        let value = OverrideValue {
            quota: Arc::new(OverrideQuota::new(quota)),
            until: self.parse_end(&members)?,
            reason: parse_reason(&members)?.map(Into::into),
        };
        let expected = match members.get("from") {
            None => ExpectedOverride::Any,
            Some(JsonValue::Null) => ExpectedOverride::Absent,
            Some(_) => match members.whole_number("from")? {
                Some(change) => ExpectedOverride::Change(change),
                None => ExpectedOverride::Absent,
            },
        };
        let edit = OverrideEdit {
            rule: rule.into(),
            key: OverriddenKey::new(key.to_string(), json),
            value: Some(value),
            expected,
            author: operator.name.clone(),
        };
        let applied = self.overrides.change(edit).await.map_err(|error| api_error(&error))?;
        events::OverrideSet { json: &applied.json, replaced: &applied.replaced }.emit();
        Ok(ok_json(&json!({ "override": applied.json, "replaced": applied.replaced })))
    }

    /// Removes an override.
    pub(super) async fn remove_override(
        &self,
        operator: &Operator,
        id: &str,
        uri: &Uri,
    ) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["from"])?;
        let expected = match query.text("from") {
            None => ExpectedOverride::Any,
            Some(_) => ExpectedOverride::Change(query.number("from", 1..=u64::MAX, 0)?),
        };
        let unknown = || ApiError::new(StatusCode::NOT_FOUND, UNKNOWN_ID);
        let (rule, key) = self.overrides.find(parse_id(id)?).ok_or_else(unknown)?;
        let edit = OverrideEdit { rule, key, value: None, expected, author: operator.name.clone() };
        let applied = self.overrides.change(edit).await.map_err(|error| api_error(&error))?;
        events::OverrideRemoved { json: &applied.json, replaced: &applied.replaced }.emit();
        Ok(ok_json(&json!({ "override": null, "replaced": applied.replaced })))
    }

    /// The text of a key as operators write it: the key itself, or JSON for one of several parts.
    fn key_text(&self, rule: &str, key: &str) -> Result<String, ApiError> {
        let config = self.config()?;
        let Some(named) = config.gate.rule_by_name(rule) else { return Ok(key.to_owned()) };
        let json = match key.starts_with(['[', '{']) {
            true => serde_json::from_str(key).ok(),
            false if key.is_empty() => Some(JsonValue::Null),
            false => None,
        };
        let json = json.unwrap_or_else(|| JsonValue::Str(key.into()));
        let parsed = named.parse_key(Some(&json)).map(|key| key.to_string());
        parsed.map_err(|error| ApiError::bad_request(error.to_string()))
    }

    /// The end: a time, or a number of seconds from now.
    fn parse_end(&self, members: &JsonMembers<'_>) -> Result<Micros, ApiError> {
        let now = self.overrides.now();
        let latest = now.saturating_add(Micros::from_secs(MAX_SECONDS));
        let until = match (members.optional_text("until")?, members.whole_number("seconds")?) {
            (Some(text), None) => Utc::parse_micros(text).ok_or_else(|| {
                ApiError::bad_request("`until` is not a time; write one in UTC, as in `2026-11-20T17:00:00Z`")
            })?,
            (None, Some(seconds)) => now.saturating_add(Micros::from_secs(seconds.min(MAX_SECONDS + 1))),
            _ => {
                let problem = "an override must end; send `until` or `seconds`, or add a tier to the policy";
                return Err(ApiError::bad_request(problem));
            }
        };
        match until > now && until <= latest {
            true => Ok(until),
            false => {
                let problem = "the end must be in the future, and at most 366 days from now; use another one, or add a tier to the policy";
                Err(ApiError::bad_request(problem))
            }
        }
    }
}

/// `o-0123456789abcdef`
fn parse_id(text: &str) -> Result<u64, ApiError> {
    let digits = text.strip_prefix("o-").filter(|digits| digits.len() == 16);
    let id = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    id.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, UNKNOWN_ID))
}

fn api_error(error: &OverrideError) -> ApiError {
    let status = match error {
        OverrideError::Rejected(_) => StatusCode::UNPROCESSABLE_ENTITY,
        OverrideError::Conflict(_) | OverrideError::Full => StatusCode::CONFLICT,
        OverrideError::NotFound => StatusCode::NOT_FOUND,
        OverrideError::File { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        OverrideError::Store(_) | OverrideError::Stopped => StatusCode::SERVICE_UNAVAILABLE,
    };
    ApiError::new(status, error.to_string())
}
