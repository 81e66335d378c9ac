//! An answer in the words of the wire that its request came by.

use crate::grpc::{GrpcCode, is_grpc, write_status_headers};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use std::time::Duration;
use tidegate_rule::RejectionResponse;

/// What a request speaks, and so what it is answered in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseProtocol {
    Http,
    Grpc,
}

/// A client of gRPC that obeys it tries again after so many milliseconds.
const GRPC_RETRY_PUSHBACK_MS: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

impl ResponseProtocol {
    pub(crate) fn detect<B>(request: &Request<B>) -> Self {
        if is_grpc(request.headers()) { Self::Grpc } else { Self::Http }
    }

    /// An answer on this wire; `message` is what gRPC says instead of a body.
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
                // A body, and what tells of one, has no place in an answer that is all trailers.
                append_headers(&answer, &mut headers, |name| !name.starts_with("content-"));
                write_status_headers(
                    &mut headers,
                    GrpcCode::from_http_status(answer.final_status()),
                    message,
                    retry,
                );
                if let Some(retry) = retry {
                    // Rounded up: earlier would be refused again.
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

/// What is no header cannot be sent, and is left out.
fn append_headers(answer: &RejectionResponse, headers: &mut HeaderMap, is_included: impl Fn(&str) -> bool) {
    for (name, value) in answer.headers.iter().filter(|(name, _)| is_included(name)) {
        let value = HeaderValue::from_bytes(value.as_bytes());
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), value) {
            headers.append(name, value);
        }
    }
}
