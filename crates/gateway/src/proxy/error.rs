//! The reasons why a request gets no response of a server, and the responses to the client.

use crate::LocalReply;
use bytes::Bytes;
use http::{Response, StatusCode};
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
    pub(crate) fn to_reply(self) -> LocalReply {
        match self {
            Self::Head(error) => {
                let status = StatusCode::from_u16(error.status()).unwrap_or(StatusCode::BAD_REQUEST);
                let reply = problem(status, error.message());
                if error.should_close() { reply.with_connection_close() } else { reply }
            }
            Self::InvalidBody => {
                problem(StatusCode::BAD_REQUEST, "The request body is invalid or incomplete.")
                    .with_connection_close()
            }
            Self::BodyTimeout => {
                problem(StatusCode::REQUEST_TIMEOUT, "The request body timed out.").with_connection_close()
            }
            Self::NoServer => problem(StatusCode::SERVICE_UNAVAILABLE, "No upstream server is available."),
            Self::Unreachable => problem(StatusCode::BAD_GATEWAY, "Cannot connect to an upstream server."),
            Self::BadResponse => problem(
                StatusCode::BAD_GATEWAY,
                "The response of the upstream server is invalid or incomplete.",
            ),
            Self::Timeout => problem(StatusCode::GATEWAY_TIMEOUT, "The upstream server timed out."),
        }
    }
}

fn problem(status: StatusCode, detail: &'static str) -> LocalReply {
    Response::<Bytes>::from(ApiError::new(status, detail)).into()
}
