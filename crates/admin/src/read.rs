//! What operators read.

use super::Office;
use axum::{body::Body, response::Response};
use http::{HeaderName, HeaderValue, StatusCode, Uri, header};
use serde_json::{Value, json};
use std::sync::Arc;
use tidegate_core::suggest;
use tidegate_http_server::{ApiError, Query, json_response, shortened};
use tidegate_observe::{Scene, Snapshot, TopBy, shown};
use tidegate_policy::{PolicyFormat, lint};

/// The header that says of how many clients the history is.
const SHARE: HeaderName = HeaderName::from_static("tidegate-share");

impl Office {
    /// All numbers now.
    pub(super) fn snapshot(&self) -> Result<Snapshot, ApiError> {
        self.observer.snapshot().ok_or_else(not_yet)
    }

    pub(super) fn scene(&self) -> Result<Arc<Scene>, ApiError> {
        self.observer.scene().ok_or_else(not_yet)
    }

    pub(super) fn status(&self, uri: &Uri) -> Result<Response, ApiError> {
        Query::parse(uri, &[])?;
        Ok(json_answer(&self.snapshot()?.json()))
    }

    pub(super) fn metrics(&self) -> Result<Response, ApiError> {
        Ok(text(self.snapshot()?.prometheus(), "text/plain; version=0.0.4; charset=utf-8"))
    }

    pub(super) fn top(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "by", "limit"])?;
        let name = query.text("by").unwrap_or("denied");
        let by = TopBy::ALL.into_iter().find(|by| by.name() == name).ok_or_else(|| {
            let name = shortened(name);
            ApiError::bad(format!("`by` is `{name}`; use `denied`, `asked` or `shadow-denied`"))
        })?;
        let limit = query.number("limit", 1..=100, 20)?;
        let scene = self.scene()?;
        let places = match query.text("rule") {
            None => 0..scene.tally.names().len(),
            Some(rule) => {
                let place = scene.tally.place_of(rule).ok_or_else(|| missing_rule(rule, &scene))?;
                place..place + 1
            }
        };
        let mut keys = Vec::new();
        for (place, rule) in
            scene.tally.names().iter().enumerate().filter(|(place, _)| places.contains(place))
        {
            let Some(sketch) = scene.tally.top(place, by) else { continue };
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
        Ok(json_answer(&json!({ "by": name, "keys": told.collect::<Vec<_>>() })))
    }

    pub(super) fn denials(&self, uri: &Uri) -> Result<Response, ApiError> {
        let query = Query::parse(uri, &["rule", "limit"])?;
        let (rule, limit) = (query.text("rule"), query.number("limit", 1..=1_000, 100)?);
        let is_meant = |meant: Option<&str>| rule.is_none() || meant == rule;
        let denials = self.observer.denials.newest(limit, |denial| is_meant(denial.rule.as_deref()));
        let denials: Vec<Value> = denials.iter().map(|denial| denial.json()).collect();
        Ok(json_answer(&json!({ "denials": denials })))
    }

    pub(super) fn denial(&self, id: &str) -> Result<Response, ApiError> {
        let found = self.observer.denials.newest(1, |denial| denial.id.0 == id);
        match found.first() {
            Some(denial) => Ok(json_answer(&denial.json())),
            None => {
                let problem = "there is no denial of this id (any more); the policy says under `observe` how many are kept";
                Err(ApiError::new(StatusCode::NOT_FOUND, problem))
            }
        }
    }

    pub(super) fn policy(&self) -> Result<Response, ApiError> {
        let scene = self.scene()?;
        let lint = lint(&scene.policy).into_iter().map(|advice| {
            json!({
                "lint": advice.lint.to_string(),
                "rule": advice.rule,
                "at": advice.path,
                "reason": advice.reason,
                "fix": advice.fix,
            })
        });
        Ok(json_answer(&json!({
            "version": scene.version,
            "file": scene.file.as_ref().map(|file| file.display().to_string()),
            "text": shown(&scene.policy).print(PolicyFormat::Yaml),
            "lint": lint.collect::<Vec<_>>(),
        })))
    }

    pub(super) fn history(&self, uri: &Uri) -> Result<Response, ApiError> {
        let limit = Query::parse(uri, &["limit"])?.number("limit", 1..=1_000_000, 10_000)?;
        // They were kept in the order in which they ended.
        let mut entries = self.observer.history.newest(limit, |_| true);
        entries.sort_by_key(|entry| entry.at);
        let lines = entries.iter().fold(String::new(), |text, entry| text + &entry.line());
        let mut response = text(lines, "application/x-ndjson");
        let share = self.scene()?.policy.observe.share.as_f64().to_string();
        if let Ok(share) = HeaderValue::try_from(share) {
            response.headers_mut().insert(SHARE, share);
        }
        Ok(response)
    }
}

pub(super) fn missing_rule(name: &str, scene: &Scene) -> ApiError {
    if scene.tally.place_of(name).is_some() {
        let problem =
            format!("rule `{}` has no quota, so nothing is counted for a key of it", shortened(name));
        return ApiError::new(StatusCode::NOT_FOUND, problem);
    }
    let fix = match suggest::closest(name, scene.tally.names().iter().map(|name| &**name)) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one of the policy's".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("there is no rule `{}`; {fix}", shortened(name)))
}

fn not_yet() -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "nothing is in force yet; ask again in a moment")
}

pub(super) fn json_answer(body: &Value) -> Response {
    json_response(StatusCode::OK, "application/json", body)
}

pub(super) fn text(text: impl Into<Body>, kind: &'static str) -> Response {
    let mut response = Response::new(text.into());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
