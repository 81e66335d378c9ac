//! What is wrong with a question, as in RFC 9457.

use axum::{body::Body, response::Response};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tidegate_core::SettingError;

/// What is wrong with a question: a status, and a sentence that says what and how to mend it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) status: StatusCode,
    pub(crate) detail: String,
    pub(super) header: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    pub(crate) fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, detail: detail.into(), header: None }
    }

    pub(crate) fn bad(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// What is wrong with the question at this place of a batch.
    pub(super) fn of(error: &SettingError, place: &str) -> Self {
        Self::bad(format!("{place}{error}"))
    }

    pub(crate) fn with(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    /// It as an answer among others.
    pub(super) fn json(&self) -> Value {
        json!({
            "type": "about:blank",
            "title": self.status.canonical_reason().unwrap_or("Error"),
            "status": self.status.as_u16(),
            "detail": self.detail,
        })
    }
}

impl From<Problem> for Response {
    fn from(problem: Problem) -> Self {
        let mut response = Self::new(Body::from(problem.json().to_string()));
        *response.status_mut() = problem.status;
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        if let Some((name, value)) = problem.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// What clients said is told to them, but not all of a megabyte.
pub(crate) fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
