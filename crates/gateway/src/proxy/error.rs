//! Why a request is not answered by a server, and what its client is told.

use bytes::Bytes;
use http::{Response, StatusCode, header};
use tidegate_http_server::ApiError;
use tidegate_policy::head::HeadError;

/// Why a request is not answered by a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyError {
    /// The head is refused.
    Head(HeadError),
    /// The body stands still.
    BodyTimeout,
    /// The body makes no sense, or its client has gone.
    InvalidBody,
    /// There is no server to be asked.
    NoServer,
    /// No connection to a server came about.
    Unreachable,
    /// A server broke off, or did not speak HTTP.
    BadResponse,
    /// A server took too long.
    Timeout,
}

impl ProxyError {
    /// A word for it, for traces.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Head(HeadError::TooLarge) => "body_too_large",
            Self::Head(_) => "bad_request",
            Self::BodyTimeout => "body_timeout",
            Self::InvalidBody => "broken_body",
            Self::NoServer => "no_server",
            Self::Unreachable => "unreachable",
            Self::BadResponse => "broken",
            Self::Timeout => "timeout",
        }
    }

    /// What its client is told.
    pub(crate) fn to_response(self) -> Response<Bytes> {
        match self {
            Self::Head(error) => {
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let answer = problem_response(status, error.message());
                if error.should_close() { with_connection_close(answer) } else { answer }
            }
            Self::InvalidBody => with_connection_close(problem_response(
                StatusCode::BAD_REQUEST,
                "The body of the request makes no sense, or is not whole.",
            )),
            Self::BodyTimeout => with_connection_close(problem_response(
                StatusCode::REQUEST_TIMEOUT,
                "The body of the request took too long to come.",
            )),
            Self::NoServer => {
                problem_response(StatusCode::SERVICE_UNAVAILABLE, "No server can take the request now.")
            }
            Self::Unreachable => problem_response(StatusCode::BAD_GATEWAY, "No server could be reached."),
            Self::BadResponse => problem_response(
                StatusCode::BAD_GATEWAY,
                "The server broke off before it answered, or made no sense.",
            ),
            Self::Timeout => {
                problem_response(StatusCode::GATEWAY_TIMEOUT, "The server took too long to answer.")
            }
        }
    }
}

fn problem_response(status: StatusCode, detail: &'static str) -> Response<Bytes> {
    ApiError::new(status, detail).into()
}

/// What comes after it on this connection cannot be told from it.
fn with_connection_close(mut response: Response<Bytes>) -> Response<Bytes> {
    response.headers_mut().insert(header::CONNECTION, http::HeaderValue::from_static("close"));
    response
}
