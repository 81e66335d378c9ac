//! What happens to requests over the limit.

use std::collections::BTreeMap;

/// `on-limit`: what becomes of a request that is over the limit, after it has waited as long as `wait` lets it.
///
/// ```yaml
/// on-limit: { status: 429, headers: { x-reason: quota }, body: "Slow down." }
/// on-limit: { bodies: { application/json: '{"error":"slow"}', text/html: "<p>Slow down.</p>" } }
/// on-limit: { redirect: /busy.html, status: 302 }
/// on-limit: { fallback: { body: "[]", headers: { content-type: application/json } } }
/// on-limit: { fallback: { upstream: spare } }
/// on-limit: drop
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnLimit {
    /// It is answered so.
    Reject(Reject),
    /// It is sent elsewhere.
    Redirect {
        /// Where.
        location: String,
        /// 303 unless told otherwise, so that whatever was asked, a page is fetched there.
        status: u16,
    },
    /// It gets something else.
    Fallback(Fallback),
    /// `drop`: the connection is closed without an answer (in HTTP/2, the stream is).
    Drop,
}

impl Default for OnLimit {
    fn default() -> Self {
        Self::Reject(Reject::default())
    }
}

/// An answer; where nothing is said, it is the usual one: 429, a problem as in RFC 9457.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reject {
    /// `status`, from 400 to 599.
    pub status: Option<u16>,
    /// `headers`, by names in lower case, besides the usual ones.
    pub headers: BTreeMap<String, String>,
    /// `body`, for whoever accepts none of `bodies`.
    pub body: Option<String>,
    /// `bodies`, by content type: the first that a client accepts.
    pub bodies: Vec<(String, String)>,
}

/// Something else than what was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fallback {
    /// `body`, with `status` (200 unless told otherwise) and `headers`.
    Body {
        /// The status.
        status: u16,
        /// Headers, by names in lower case.
        headers: BTreeMap<String, String>,
        /// The body.
        body: String,
    },
    /// `upstream`: what another one answers.
    Upstream(String),
}
