//! `/json`: the same questions in JSON over HTTP, by any method.

use super::{MOST_MESSAGE, translate};
use crate::descriptors::{Decide, DescriptorFault, OverLimit};
use bytes::Bytes;
use http::{HeaderValue, Request, Response, StatusCode, header};
use http_body::Body;
use std::{error::Error, sync::Arc};
use tidegate_http_server::{Authorization, read_body};
use tidegate_proto::json;

/// The decision service for those who speak JSON.
#[derive(Clone, Debug)]
pub struct JsonWire<D> {
    decide: D,
    authorization: Arc<Authorization>,
}

/// What is wrong with a request. The body of a refusal is the reference service's, which does not say.
const REASON: &str = "tidegate-reason";

impl<D: Decide> JsonWire<D> {
    /// Asks this about every request.
    pub fn new(decide: D) -> Self {
        Self { decide, authorization: Arc::default() }
    }

    /// Requires these tokens.
    #[must_use]
    pub(crate) fn authorization(self, authorization: Arc<Authorization>) -> Self {
        Self { authorization, ..self }
    }

    /// Answers a request for `/json`.
    pub async fn answer<B>(&self, request: Request<B>) -> Response<Bytes>
    where
        B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>>,
    {
        let body = match self.authorization.caller(request.headers()) {
            Ok(_) => read_body(request.into_body(), MOST_MESSAGE).await,
            Err(error) => Err(error),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => return refusal(error.status, &error.detail),
        };
        match self.decided(&body).await {
            Ok(response) => response,
            Err(DescriptorFault::Invalid(told)) => refusal(StatusCode::BAD_REQUEST, &told),
            Err(fault @ (DescriptorFault::NoConfiguration | DescriptorFault::Unavailable(_))) => {
                refusal(StatusCode::SERVICE_UNAVAILABLE, &fault.to_string())
            }
        }
    }

    async fn decided(&self, body: &[u8]) -> Result<Response<Bytes>, DescriptorFault> {
        let request = json::from_slice(body).map_err(|error| DescriptorFault::Invalid(error.to_string()))?;
        let verdict = self.decide.decide(translate::asked(request)?).await?;
        let status = match verdict.overall {
            OverLimit::No => StatusCode::OK,
            OverLimit::Yes => StatusCode::TOO_MANY_REQUESTS,
        };
        let written = json::to_vec(&translate::said(verdict))
            .map_err(|error| DescriptorFault::Unavailable(format!("the answer is no JSON: {error}")))?;
        Ok(response(status, "application/json", written.into()))
    }
}

fn refusal(status: StatusCode, told: &str) -> Response<Bytes> {
    let body = format!("{}\n", status.canonical_reason().unwrap_or_default());
    let mut response = response(status, "text/plain; charset=utf-8", body.into());
    let told: String =
        told.chars().take(MOST_TOLD).map(|sign| if is_plain(sign) { sign } else { '?' }).collect();
    if let Ok(told) = HeaderValue::from_str(&told) {
        response.headers_mut().insert(REASON, told);
    }
    response
}

fn response(status: StatusCode, kind: &'static str, body: Bytes) -> Response<Bytes> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// Signs of a reason that are told.
const MOST_TOLD: usize = 512;

fn is_plain(sign: char) -> bool {
    matches!(sign, ' '..='~')
}
