//! The reasons why a request gets no response of a server, and the responses to the client.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use tidegate_http_server::ApiError;
use tidegate_policy::head::HeadError;

/// The reason why a request gets no response of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyError {
    /// The head is invalid.
    Head(HeadError),
    /// The request body timed out.
    BodyTimeout,
    /// The request body is invalid, or the client disconnected.
    InvalidBody,
    /// No server is available.
    NoServer,
    /// The connection to a server failed.
    Unreachable,
    /// The response is incomplete or not HTTP.
    BadResponse,
    /// The server timed out.
    Timeout,
}

impl ProxyError {
    /// The name in traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Head(HeadError::TooLarge) => "body_too_large",
            Self::Head(_) => "bad_request",
            Self::BodyTimeout => "body_timeout",
            Self::InvalidBody => "invalid_body",
            Self::NoServer => "no_server",
            Self::Unreachable => "unreachable",
            Self::BadResponse => "bad_response",
            Self::Timeout => "timeout",
        }
    }

    /// The response to the client.
    pub(crate) fn to_response(self) -> Response<Bytes> {
        match self {
            Self::Head(error) => {
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let response = problem_response(status, error.message());
                if error.should_close() { with_connection_close(response) } else { response }
            }
            Self::InvalidBody => with_connection_close(problem_response(
                StatusCode::BAD_REQUEST,
                "The request body is invalid or incomplete.",
            )),
            Self::BodyTimeout => with_connection_close(problem_response(
                StatusCode::REQUEST_TIMEOUT,
                "The request body timed out.",
            )),
            Self::NoServer => {
                problem_response(StatusCode::SERVICE_UNAVAILABLE, "No upstream server is available.")
            }
            Self::Unreachable => {
                problem_response(StatusCode::BAD_GATEWAY, "Cannot connect to an upstream server.")
            }
            Self::BadResponse => problem_response(
                StatusCode::BAD_GATEWAY,
                "The response of the upstream server is invalid or incomplete.",
            ),
            Self::Timeout => problem_response(StatusCode::GATEWAY_TIMEOUT, "The upstream server timed out."),
        }
    }
}

fn problem_response(status: StatusCode, detail: &'static str) -> Response<Bytes> {
    ApiError::new(status, detail).into()
}

/// Closes the connection, because the next request cannot be separated from this one.
fn with_connection_close(mut response: Response<Bytes>) -> Response<Bytes> {
    response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}
