//! Writes JSON responses.

use http::{HeaderValue, Response, StatusCode, header};
use serde::Serialize;

/// Bytes that most responses have at most.
const INITIAL_CAPACITY: usize = 256;

/// JSON as a response, with a body of any type.
pub fn json_response<B: From<Vec<u8>>>(
    status: StatusCode,
    kind: &'static str,
    body: &impl Serialize,
) -> Response<B> {
    // Nothing here has a name that is no text, which is all that can go wrong.
    let mut written = Vec::with_capacity(INITIAL_CAPACITY);
    if serde_json::to_writer(&mut written, body).is_err() {
        written = b"{}".to_vec();
    }
    let mut response = Response::new(written.into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
