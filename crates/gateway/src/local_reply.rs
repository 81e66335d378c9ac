//! A response of the gateway itself.

use crate::http1::ParsedResponse;
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode};
use std::sync::Arc;
use tidegate_policy::head::is_hop_by_hop;
use tidegate_rule::RejectionResponse;

/// A response of the gateway itself, without a server.
///
/// ```
/// use bytes::Bytes;
/// use tidegate_gateway::LocalReply;
///
/// let reply = LocalReply::from(http::Response::new(Bytes::from_static(b"Try again later.")));
/// assert_eq!(reply.head.status, 200);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LocalReply {
    /// The head. The fields that describe the length of the body are added when it is sent.
    pub head: ParsedResponse,
    /// The body.
    pub body: Bytes,
}

impl LocalReply {
    /// Makes it the last response of its connection.
    pub(crate) fn with_connection_close(mut self) -> Self {
        self.head.fields.set(b"connection", b"close");
        self
    }
}

impl From<Response<Bytes>> for LocalReply {
    fn from(response: Response<Bytes>) -> Self {
        let (parts, body) = response.into_parts();
        let mut head = ParsedResponse::from(&parts);
        head.fields.retain(|name, _| !is_connection_field(name));
        Self { head, body }
    }
}

/// Converts the response. Headers that HTTP does not allow, and those of the connection, are left out.
impl From<&RejectionResponse> for LocalReply {
    fn from(rejection: &RejectionResponse) -> Self {
        let mut head = ParsedResponse::default();
        head.reset(StatusCode::from_u16(rejection.final_status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS));
        let bytes: usize = rejection.headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        // With room for the fields that are added when it is sent.
        head.fields.reserve(rejection.headers.len() + 3, bytes + 96);
        for (name, value) in &rejection.headers {
            if is_field_name(name)
                && !is_connection_field(&name.as_bytes().to_ascii_lowercase())
                && HeaderValue::from_bytes(value.as_bytes()).is_ok()
            {
                head.fields.push(name.as_bytes(), value.as_bytes());
            }
        }
        Self { head, body: Bytes::copy_from_slice(rejection.body.as_bytes()) }
    }
}

/// The replies of rejections that several requests share, so that each is converted once.
pub(crate) struct ReplyCache {
    slots: [ArcSwapOption<CachedReply>; CACHED_REPLIES],
}

struct CachedReply {
    /// Owned, so that no other rejection has its address.
    rejection: Arc<RejectionResponse>,
    reply: Arc<LocalReply>,
}

const CACHED_REPLIES: usize = 64;

impl ReplyCache {
    /// Returns the reply of a rejection.
    pub(crate) fn get_or_convert(&self, rejection: &Arc<RejectionResponse>) -> Arc<LocalReply> {
        let slot = &self.slots[(Arc::as_ptr(rejection).addr() >> 6) % CACHED_REPLIES];
        if let Some(cached) = slot.load().as_ref().filter(|cached| Arc::ptr_eq(&cached.rejection, rejection))
        {
            return cached.reply.clone();
        }
        let reply = Arc::new(LocalReply::from(&**rejection));
        slot.store(Some(Arc::new(CachedReply { rejection: rejection.clone(), reply: reply.clone() })));
        reply
    }
}

impl Default for ReplyCache {
    fn default() -> Self {
        Self { slots: [const { ArcSwapOption::const_empty() }; CACHED_REPLIES] }
    }
}

/// Whether a field describes the connection or the length of the body. These are set when the response is sent.
fn is_connection_field(name: &[u8]) -> bool {
    name == b"content-length" || is_hop_by_hop(name)
}

/// Whether a header may have this name. The usual names of rejections need no parsing.
fn is_field_name(name: &str) -> bool {
    matches!(name, "retry-after" | "ratelimit-policy" | "ratelimit" | "content-type")
        || HeaderName::from_bytes(name.as_bytes()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_reply_is_that_of_its_rejection() {
        let cache = ReplyCache::default();
        let rejections: Vec<_> =
            (0..200).map(|number| Arc::new(RejectionResponse::new(429).text(number.to_string()))).collect();
        for rejection in rejections.iter().chain(&rejections) {
            assert_eq!(cache.get_or_convert(rejection).body, rejection.body);
            assert_eq!(cache.get_or_convert(rejection).body, rejection.body);
        }
    }

    #[test]
    fn rejection_has_the_same_fields_in_both_representations() {
        let mut rejection = RejectionResponse::new(99).header("x-note", "é").text("wait");
        rejection.headers.push(("x bad".into(), "a".into()));
        rejection.headers.push(("Content-Length".into(), "3".into()));
        rejection.headers.push(("transfer-encoding".into(), "chunked".into()));
        rejection.headers.push(("x-bad".into(), "a\r\nset-cookie: b".into()));
        let reply = LocalReply::from(&rejection);
        let converted = LocalReply::from(Response::<Bytes>::from(rejection));
        let names: Vec<_> = reply.head.fields.iter().map(|(name, _)| name).collect();
        assert_eq!(names, [&b"x-note"[..], b"content-type"]);
        assert_eq!((reply.head, reply.body), (converted.head, converted.body));
    }
}
