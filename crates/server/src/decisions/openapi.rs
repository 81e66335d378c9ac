//! `/v1/openapi.json`: what can be asked here, for programs.

use super::Response;
use http::{HeaderValue, header};

const TEXT: &str = include_str!("../../../../docs/openapi.json");

pub(super) fn answer() -> Response {
    let mut response = Response::new(TEXT.into());
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
