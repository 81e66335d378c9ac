//! Writes JSON responses.

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

/// Bytes that are enough for most responses.
const INITIAL_CAPACITY: usize = 256;

/// Builds a JSON response.
pub fn json_response<B: From<Vec<u8>>>(
    status: StatusCode,
    kind: &'static str,
    body: &impl Serialize,
) -> Response<B> {
    // Only a map key that is not a string could fail, and no response has one.
    let mut written = Vec::with_capacity(INITIAL_CAPACITY);
    if serde_json::to_writer(&mut written, body).is_err() {
        written = b"{}".to_vec();
    }
    let mut response = Response::new(written.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
