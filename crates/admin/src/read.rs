//! What operators read.

use super::AdminState;
use axum::{body::Body, response::Response};
use http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_core::suggest;
use tidegate_http_server::{ApiError, Query, json_response, truncate};
use tidegate_observe::{ConfigSnapshot, Snapshot, TopBy, redact};
use tidegate_policy::{PolicyFormat, lint};

/// The header that says of how many clients the history is.
const SHARE_HEADER: HeaderName = HeaderName::from_static("tidegate-share");

impl AdminState {
    /// All numbers now.
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
            ApiError::bad_request(format!("`by` is `{name}`; use `denied`, `asked` or `shadow-denied`"))
        })?;
        let limit = query.number("limit", 1..=100, 20)?;
        let scene = self.config()?;
        let places = match query.text("rule") {
            None => 0..scene.counters.names().len(),
            Some(rule) => {
                let place = scene.counters.rule_index(rule).ok_or_else(|| unknown_rule(rule, &scene))?;
                place..place + 1
            }
        };
        let mut keys = Vec::new();
        for (place, rule) in
            scene.counters.names().iter().enumerate().filter(|(place, _)| places.contains(place))
        {
            let Some(sketch) = scene.counters.top(place, by) else { continue };
            let total = sketch.total().max(1);
            keys.extend(sketch.top().into_iter().take(limit).map(|key| (rule.clone(), key, total)));
        }
        keys.sort_by(|(_, a, _), (_, b, _)| {
            b.min_count().cmp(&a.min_count()).then_with(|| a.name.cmp(&b.name))
        });
        let told = keys.into_iter().take(limit).map(|(rule, key, total)| {
            json!({
                "rule": &*rule,
                "key": key.name,
                "count": key.count,
                "error": key.error,
                "share": (key.count.min(total)) as f64 / total as f64,
            })
        });
        Ok(ok_json(&json!({ "by": name, "keys": told.collect::<Vec<_>>() })))
    }

    pub(super) fn denials(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "limit"])?;
        let (rule, limit) = (query.text("rule"), query.number("limit", 1..=1_000, 100)?);
        let is_meant = |meant: Option<&str>| rule.is_none() || meant == rule;
        let denials = self.observer.denials.newest(limit, |denial| is_meant(denial.rule.as_deref()));
        let denials: Vec<Value> = denials.iter().map(|denial| denial.to_json()).collect();
        Ok(ok_json(&json!({ "denials": denials })))
    }

    pub(super) fn denial(&self, id: &str) -> Result<Response, ApiError> {
        let found = self.observer.denials.newest(1, |denial| denial.id.0 == id);
        match found.first() {
            Some(denial) => Ok(ok_json(&denial.to_json())),
            None => {
                let problem = "there is no denial of this id (any more); the policy says under `observe` how many are kept";
                Err(ApiError::new(StatusCode::NOT_FOUND, problem))
            }
        }
    }

    pub(super) fn policy(&self) -> Result<Response, ApiError> {
        let scene = self.config()?;
        let lint = lint(&scene.policy).into_iter().map(|advice| {
            json!({
                "lint": advice.lint.to_string(),
                "rule": advice.rule,
                "at": advice.path,
                "reason": advice.reason,
                "fix": advice.fix,
            })
        });
        Ok(ok_json(&json!({
            "version": scene.version,
            "file": scene.file.as_ref().map(|file| file.display().to_string()),
            "text": redact(&scene.policy).print(PolicyFormat::Yaml),
            "lint": lint.collect::<Vec<_>>(),
        })))
    }

    pub(super) fn history(&self, uri: &Uri) -> Result<Response, ApiError> {
        let limit = Query::parse(uri, &["limit"])?.number("limit", 1..=1_000_000, 10_000)?;
        // They were kept in the order in which they ended.
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

pub(super) fn unknown_rule(name: &str, scene: &ConfigSnapshot) -> ApiError {
    if scene.counters.rule_index(name).is_some() {
        let problem =
            format!("rule `{}` has no quota, so nothing is counted for a key of it", truncate(name));
        return ApiError::new(StatusCode::NOT_FOUND, problem);
    }
    let fix = match suggest::closest(name, scene.counters.names().iter().map(|name| &**name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one of the policy's".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no rule `{}`; {fix}", truncate(name)))
}

fn not_ready() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "nothing is in force yet; ask again in a moment")
}

pub(super) fn ok_json(body: &Value) -> Response {
    json_response(StatusCode::OK, "application/json", body)
}

pub(super) fn text_response(text: impl Into<Body>, kind: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
