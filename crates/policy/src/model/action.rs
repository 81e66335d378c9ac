//! Actions for requests over the limit.

use std::{collections::BTreeMap, time::Duration};

/// `on-limit`: what happens to a request over the limit, after it has waited for at most `wait`.
///
/// ```yaml
/// on-limit: { status: 429, headers: { x-reason: quota }, body: "Slow down." }
/// on-limit: { bodies: { application/json: '{"error":"slow"}', text/html: "<p>Slow down.</p>" } }
/// on-limit: { redirect: /busy.html, status: 302 }
/// on-limit: { fallback: { body: "[]", headers: { content-type: application/json } } }
/// on-limit: { fallback: { upstream: spare } }
/// on-limit: { fallback: { cache: 10min, body: "[]" } }
/// on-limit: drop
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// The request is rejected with this response.
    Reject(Reject),
    /// The client is redirected.
    Redirect {
        /// A URL or a path.
        location: String,
        /// 303 by default, so that the client follows with GET, whatever the method of the request.
        status: u16,
    },
    /// The client gets another response.
    Fallback(Fallback),
    /// `drop`: the connection is closed without a response (in HTTP/2, the stream).
    Drop,
}

impl Default for OnLimit {
    fn default() -> Self {
        Self::Reject(Reject::default())
    }
}

/// A rejection; by default 429 with problem details (RFC 9457).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reject {
    /// `status`, from 400 to 599.
    pub status: Option<u16>,
    /// `headers` to add, by names in lower case.
    pub headers: BTreeMap<String, String>,
    /// `body`, for clients that accept none of `bodies`.
    pub body: Option<String>,
    /// `bodies`, by content type. The first one that the client accepts is sent.
    pub bodies: Vec<(String, String)>,
}

/// A response instead of a rejection: a cached one, another one, or the other one if none is cached.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fallback {
    /// `cache`: the last good response to the same request, if it is not older than this.
    pub cache: Option<Duration>,
    /// The response without a cached one; the rejection if there is no such response.
    pub response: Option<FallbackResponse>,
}

/// The response of a fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FallbackResponse {
    /// `body`, with `status` (200 by default) and `headers`.
    Body {
        /// The status.
        status: u16,
        /// Headers, by names in lower case.
        headers: BTreeMap<String, String>,
        /// The body.
        body: String,
    },
    /// `upstream`: the response of another upstream.
    Upstream(String),
}

impl OnLimit {
    /// The upstream that handles requests over the limit, if there is one.
    pub fn fallback_upstream(&self) -> Option<&str> {
        match self {
            Self::Fallback(Fallback { response: Some(FallbackResponse::Upstream(name)), .. }) => Some(name),
            _ => None,
        }
    }

    /// The maximum age of cached responses to requests over the limit, if they are used.
    pub fn fallback_cache(&self) -> Option<Duration> {
        match self {
            Self::Fallback(fallback) => fallback.cache,
            _ => None,
        }
    }
}

impl From<FallbackResponse> for Fallback {
    fn from(response: FallbackResponse) -> Self {
        Self { cache: None, response: Some(response) }
    }
}
