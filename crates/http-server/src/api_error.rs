//! Errors of the HTTP APIs.

use axum::response::IntoResponse;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use serde_json::Value;
use std::borrow::Cow;
use tidegate_rule::{ProblemDetails, RejectionResponse};

/// An error response: a status, and a sentence that states the error and its fix.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The status of the response.
    pub status: StatusCode,
    /// The error and its fix.
    pub detail: Cow<'static, str>,
    header: Option<(HeaderName, HeaderValue)>,
}

impl ApiError {
    /// An error with this status.
    pub fn new(status: StatusCode, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { status, detail: detail.into(), header: None }
    }

    /// An error with status 400.
    pub fn bad_request(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// Adds a header to the response.
    pub fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }

    fn problem_details(&self) -> ProblemDetails<'_> {
        let title = self.status.canonical_reason().unwrap_or("Error");
        ProblemDetails { detail: &self.detail, ..ProblemDetails::new(self.status.as_u16(), title) }
    }

    /// The error as JSON, as one of several results in a batch.
    pub fn to_json(&self) -> Value {
        serde_json::from_str(&self.problem_details().to_json()).unwrap_or_default()
    }
}

impl<B: From<String>> From<ApiError> for Response<B> {
    fn from(error: ApiError) -> Self {
        let mut response = Self::from(RejectionResponse::from_problem(&error.problem_details()));
        if let Some((name, value)) = error.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> axum::response::Response {
        self.into()
    }
}

/// Shortens client input for the text of an error.
pub fn truncate(text: &str) -> String {
    const MAX_LENGTH: usize = 60;
    match text.char_indices().nth(MAX_LENGTH) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
