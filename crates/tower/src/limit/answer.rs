//! A refusal, in the words of the wire that the request came by.

use crate::grpc::{Code, is_grpc, status_headers};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tidegate_rule::{Answer, Gate, Verdict};

/// What a request speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Http,
    Grpc,
}

/// A client that obeys it tries again after so many milliseconds, and not at all if it is negative.
const PUSHBACK: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");

/// A refusal, until the service's body is known.
pub(super) type Refusal = Box<Response<String>>;

impl Wire {
    pub(super) fn of<B>(request: &Request<B>) -> Self {
        if is_grpc(request.headers()) { Self::Grpc } else { Self::Http }
    }

    /// The answer to a request that was refused.
    #[cold]
    pub(super) fn answer(self, gate: &Gate, verdict: &Verdict<'_>) -> Refusal {
        let answer = gate.answer_to(verdict);
        let response = match self {
            Self::Http => {
                let mut response = Response::new(answer.body.clone());
                let status = StatusCode::from_u16(answer.final_status());
                *response.status_mut() = status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
                write(&answer, response.headers_mut(), |_| true);
                response
            }
            Self::Grpc => {
                let mut response = Response::new(String::new());
                let headers = response.headers_mut();
                // A body, and what tells of one, has no place in an answer that is all trailers.
                write(&answer, headers, |name| !name.starts_with("content-"));
                let retry = verdict.retry_after();
                let message = verdict.limited().map_or(answer.body, |limited| limited.to_string());
                status_headers(headers, Code::of_http(answer.status), &message, retry);
                if let Some(retry) = retry {
                    // Rounded up: earlier would be refused again.
                    let millis = u64::try_from(retry.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX);
                    headers.insert(PUSHBACK, HeaderValue::from(millis));
                }
                response
            }
        };
        Box::new(response)
    }
}

/// What is no header cannot be sent, and is left out.
fn write(answer: &Answer, headers: &mut HeaderMap, is_meant: impl Fn(&str) -> bool) {
    for (name, value) in answer.headers.iter().filter(|(name, _)| is_meant(name)) {
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(value))
        {
            headers.append(name, value);
        }
    }
}
