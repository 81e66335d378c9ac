//! Answers of the gateway itself.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

/// A problem as in RFC 9457. What is told is only ever a fixed sentence, so that nothing of the inside gets out.
pub(crate) fn problem(status: StatusCode, detail: &'static str) -> Response<Bytes> {
    let title = status.canonical_reason().unwrap_or("Error");
    let body = format!(
        r#"{{"type":"about:blank","title":"{title}","status":{},"detail":"{detail}"}}"#,
        status.as_u16()
    );
    let mut response = Response::new(Bytes::from(body));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
