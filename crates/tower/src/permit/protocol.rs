//! Rejection responses in the protocol of the request.

use crate::grpc::{GrpcCode, is_grpc, write_status_headers};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use std::time::Duration;
use tidegate_rule::RejectionResponse;

/// The protocol of a request and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseProtocol {
    Http,
    Grpc,
}

/// The delay in milliseconds after which a gRPC client retries.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl ResponseProtocol {
    pub(crate) fn detect<B>(request: &Request<B>) -> Self {
        if is_grpc(request.headers()) { Self::Grpc } else { Self::Http }
    }

    /// Returns the rejection response; gRPC has `message` instead of a body.
    pub(crate) fn respond(
        self,
        answer: RejectionResponse,
        message: &str,
        retry: Option<Duration>,
    ) -> Response<Bytes> {
        let mut headers = HeaderMap::with_capacity(answer.headers.len() + 4);
        let (status, body) = match self {
            Self::Http => {
                append_headers(&answer, &mut headers, |_| true);
                let status = StatusCode::from_u16(answer.final_status());
                (status.unwrap_or(StatusCode::SERVICE_UNAVAILABLE), Bytes::from(answer.body))
            }
            Self::Grpc => {
                // A trailers-only response has no body, so omit the headers that describe it.
                append_headers(&answer, &mut headers, |name| !name.starts_with("content-"));
                write_status_headers(
                    &mut headers,
                    GrpcCode::from_http_status(answer.final_status()),
                    message,
                    retry,
                );
                if let Some(retry) = retry {
                    // Round up, because an earlier retry would be rejected again.
                    let millis = u64::try_from(retry.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
                    headers.insert(GRPC_RETRY_PUSHBACK_MS, HeaderValue::from(millis));
                }
                (StatusCode::OK, Bytes::new())
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

/// Appends all valid headers; invalid ones are omitted.
fn append_headers(answer: &RejectionResponse, headers: &mut HeaderMap, is_included: impl Fn(&str) -> bool) {
    for (name, value) in answer.headers.iter().filter(|(name, _)| is_included(name)) {
        let value = HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            headers.append(name, value);
        }
    }
}
