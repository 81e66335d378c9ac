//! Read-only endpoints: status, metrics, series, top keys, denials, policy and history.

use super::AdminState;
use axum::{body::Body, response::Response};
use http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_core::suggest;
use tidegate_http_server::{ApiError, Query, json_response, truncate};
use tidegate_observe::{ConfigSnapshot, Snapshot, TopBy, redact};
use tidegate_policy::{PolicyFormat, lint};

/// The response header with the sampled ratio of clients in the history.
const SHARE_HEADER: HeaderName = HeaderName::from_static("tidegate-share");

impl AdminState {
    /// Takes a snapshot; 503 before a policy is in force.
    pub(super) fn snapshot(&self) -> Result<Snapshot, ApiError> {
        self.observer.snapshot().ok_or_else(not_ready)
    }

    pub(super) fn config(&self) -> Result<Arc<ConfigSnapshot>, ApiError> {
        self.observer.config().ok_or_else(not_ready)
    }

    pub(super) fn status(&self, uri: &Uri) -> Result<Response, ApiError> {
        Query::parse(uri, &[])?;
        Ok(ok_json(&self.snapshot()?.to_json()))
    }

    pub(super) fn metrics(&self) -> Result<Response, ApiError> {
        Ok(text_response(self.snapshot()?.prometheus(), "text/plain; version=0.0.4; charset=utf-8"))
    }

    pub(super) fn top(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "by", "limit"])?;
        let name = query.text("by").unwrap_or("denied");
        let by = TopBy::ALL.into_iter().find(|by| by.name() == name).ok_or_else(|| {
            let name = truncate(name);
            ApiError::bad_request(format!("`by` is `{name}`; use `denied`, `requests` or `shadow-denied`"))
        })?;
        let limit = query.number("limit", 1..=100, 20)?;
        let config = self.config()?;
        let indexes = match query.text("rule") {
            None => 0..config.counters.names().len(),
            Some(rule) => {
                let index = config.counters.rule_index(rule).ok_or_else(|| unknown_rule(rule, &config))?;
                index..index + 1
            }
        };
        let mut keys = Vec::new();
        for (index, rule) in
            config.counters.names().iter().enumerate().filter(|(index, _)| indexes.contains(index))
        {
            let Some(sketch) = config.counters.top(index, by) else { continue };
            let total = sketch.total().max(1);
            keys.extend(sketch.top().into_iter().take(limit).map(|key| (rule.clone(), key, total)));
        }
        keys.sort_by(|(_, a, _), (_, b, _)| {
            b.min_count().cmp(&a.min_count()).then_with(|| a.name.cmp(&b.name))
        });
        let listed = keys.into_iter().take(limit).map(|(rule, key, total)| {
            json!({
                "rule": &*rule,
                "key": key.name,
                "count": key.count,
                "error": key.error,
                "share": (key.count.min(total)) as f64 / total as f64,
            })
        });
        Ok(ok_json(&json!({ "by": name, "keys": listed.collect::<Vec<_>>() })))
    }

    pub(super) fn denials(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "limit"])?;
        let (rule, limit) = (query.text("rule"), query.number("limit", 1..=1_000, 100)?);
        let matches_rule = |name: Option<&str>| rule.is_none() || name == rule;
        let denials = self.observer.denials.newest(limit, |denial| matches_rule(denial.rule.as_deref()));
        let denials: Vec<Value> = denials.iter().map(|denial| denial.to_json()).collect();
        Ok(ok_json(&json!({ "denials": denials })))
    }

    pub(super) fn denial(&self, id: &str) -> Result<Response, ApiError> {
        let found = self.observer.denials.newest(1, |denial| denial.id.0 == id);
        match found.first() {
            Some(denial) => Ok(ok_json(&denial.to_json())),
            None => {
                let problem =
                    "unknown denial, or its record was evicted; `observe` in the policy sets the capacity";
                Err(ApiError::new(StatusCode::NOT_FOUND, problem))
            }
        }
    }

    pub(super) fn policy(&self) -> Result<Response, ApiError> {
        let config = self.config()?;
        let lint = lint(&config.policy).into_iter().map(|advice| {
            json!({
                "lint": advice.lint.to_string(),
                "rule": advice.rule,
                "at": advice.path,
                "reason": advice.reason,
                "fix": advice.fix,
            })
        });
        Ok(ok_json(&json!({
            "version": config.version,
            "file": config.file.as_ref().map(|file| file.display().to_string()),
            "text": redact(&config.policy).print(PolicyFormat::Yaml),
            "lint": lint.collect::<Vec<_>>(),
        })))
    }

    pub(super) fn series(&self, uri: &Uri) -> Result<Response, ApiError> {
        let limit = Query::parse(uri, &["limit"])?.number("limit", 1..=360, 360)?;
        Ok(ok_json(&self.observer.series_json(limit)))
    }

    pub(super) fn history(&self, uri: &Uri) -> Result<Response, ApiError> {
        let limit = Query::parse(uri, &["limit"])?.number("limit", 1..=1_000_000, 10_000)?;
        // Entries are recorded in the order in which requests end.
        let mut entries = self.observer.history.newest(limit, |_| true);
        entries.sort_by_key(|entry| entry.at);
        let lines = entries.iter().fold(String::new(), |text, entry| text + &entry.to_line());
        let mut response = text_response(lines, "application/x-ndjson");
        let share = self.config()?.policy.observe.share.as_f64().to_string();
        if let Ok(share) = HeaderValue::try_from(share) {
            response.headers_mut().insert(SHARE_HEADER, share);
        }
        Ok(response)
    }
}

pub(super) fn unknown_rule(name: &str, config: &ConfigSnapshot) -> ApiError {
    if config.counters.rule_index(name).is_some() {
        let problem = format!("rule `{}` has no quota, so it has no keys", truncate(name));
        return ApiError::new(StatusCode::NOT_FOUND, problem);
    }
    let fix = match suggest::closest(name, config.counters.names().iter().map(|name| &**name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "use the name of a rule of the policy".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("unknown rule `{}`; {fix}", truncate(name)))
}

fn not_ready() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no policy is in force yet; try again later")
}

pub(super) fn ok_json(body: &Value) -> Response {
    json_response(StatusCode::OK, "application/json", body)
}

pub(super) fn text_response(text: impl Into<Body>, kind: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
