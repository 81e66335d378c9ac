//! `/json`: the same requests in JSON over HTTP, with any method.

use super::{MAX_MESSAGE_SIZE, convert};
use crate::descriptors::{Decide, DecisionError, LimitCode};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use std::{error::Error, sync::Arc};
use tidegate_http_server::{Authorization, read_body};
use tidegate_proto::json;

/// The JSON endpoint of the rate limit service.
#[derive(Clone, Debug)]
pub struct JsonHandler<D> {
    decider: D,
    authorization: Arc<Authorization>,
}

/// The header with the reason of an error. The body matches envoyproxy/ratelimit, which does not contain it.
const REASON_HEADER: &str = "tidegate-reason";

impl<D: Decide> JsonHandler<D> {
    /// Creates a handler that calls `decider` for every request.
    pub fn new(decider: D) -> Self {
        Self { decider, authorization: Arc::default() }
    }

    /// Requires these tokens.
    #[must_use]
    pub(crate) fn authorization(self, authorization: Arc<Authorization>) -> Self {
        Self { authorization, ..self }
    }

    /// Handles a request for `/json`.
    pub async fn handle<B>(&self, request: Request<B>) -> Response<Bytes>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let body = match self.authorization.authenticate(request.headers()) {
            Ok(_) => read_body(request.into_body(), MAX_MESSAGE_SIZE).await,
            Err(error) => Err(error),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return error_response(error.status, &error.detail),
        };
        match self.decide(&body).await {
            Ok(response) => response,
            Err(DecisionError::Invalid(reason)) => error_response(StatusCode::BAD_REQUEST, &reason),
            Err(error @ (DecisionError::NoConfiguration | DecisionError::Unavailable(_))) => {
                error_response(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            }
        }
    }

    async fn decide(&self, body: &[u8]) -> Result<Response<Bytes>, DecisionError> {
        let request = json::parse_request(body).map_err(|error| DecisionError::Invalid(error.to_string()))?;
        let verdict = self.decider.decide(convert::decode_request(request)?).await?;
        let status = match verdict.overall_code {
            LimitCode::Ok => StatusCode::OK,
            LimitCode::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        };
        let json_text = json::write_response(&convert::encode_response(verdict))
            .map_err(|error| DecisionError::Unavailable(format!("cannot encode the response: {error}")))?;
        Ok(build_response(status, "application/json", json_text.into()))
    }
}

fn error_response(status: StatusCode, reason: &str) -> Response<Bytes> {
    let body = format!("{}\n", status.canonical_reason().unwrap_or_default());
    let mut response = build_response(status, "text/plain; charset=utf-8", body.into());
    let reason: String =
        reason.chars().take(MAX_REASON_LEN).map(|c| if is_printable_ascii(c) { c } else { '?' }).collect();
    if let Ok(reason) = HeaderValue::from_str(&reason) {
        response.headers_mut().insert(REASON_HEADER, reason);
    }
    response
}

fn build_response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// The maximum length of the reason in characters.
const MAX_REASON_LEN: usize = 512;

fn is_printable_ascii(c: char) -> bool {
    matches!(c, ' '..='~')
}
