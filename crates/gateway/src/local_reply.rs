//! A response of the gateway itself.

use crate::{
    http1::{ParsedResponse, write_response},
    proxy::X_REQUEST_ID,
    send_buffer::MAX_COPIED_FRAME,
};
use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use std::sync::{Arc, OnceLock};
use tidegate_policy::head::{FieldKinds, is_hop_by_hop};
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

/// A reply that several requests share. Most of its head is written once, and not for each request.
#[derive(Debug)]
pub struct SharedReply {
    reply: LocalReply,
    /// Empty before the second use in a cache, because many rejections are sent once.
    rendered: OnceLock<Option<RenderedReply>>,
}

/// A response with HTTP/1.1 that does not end its connection.
#[derive(Debug)]
pub(crate) struct RenderedReply {
    /// The head without the fields that differ between responses, and without the empty line at its end.
    head: Box<[u8]>,
    /// The empty line, and the body.
    rest: Box<[u8]>,
}

impl SharedReply {
    fn unrendered(reply: LocalReply) -> Self {
        Self { reply, rendered: OnceLock::new() }
    }

    fn render(&self) {
        self.rendered.get_or_init(|| RenderedReply::new(&self.reply));
    }

    /// The reply, for a request that needs a copy.
    pub(crate) fn reply(&self) -> &LocalReply {
        &self.reply
    }

    /// The response as HTTP/1.1 sends it; `None` if it must be built from the [reply](Self::reply).
    #[inline]
    pub(crate) fn rendered(&self) -> Option<&RenderedReply> {
        self.rendered.get()?.as_ref()
    }
}

impl From<LocalReply> for SharedReply {
    fn from(reply: LocalReply) -> Self {
        let shared = Self::unrendered(reply);
        shared.render();
        shared
    }
}

impl RenderedReply {
    /// `None` if the fields depend on the request or on the connection, or if the body is too large to copy.
    fn new(reply: &LocalReply) -> Option<Self> {
        let LocalReply { head, body } = reply;
        let depends_on_request = head.fields.may_contain(FieldKinds::FRAMING)
            || head.fields.may_contain(FieldKinds::HOP_BY_HOP)
            || head.fields.may_contain(FieldKinds::DATE)
            || head.fields.contains(X_REQUEST_ID)
            || head.status.is_informational()
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if depends_on_request || body.len() > MAX_COPIED_FRAME {
            return None;
        }
        let mut text = Vec::new();
        let length = format!("content-length: {}\r\n", body.len());
        write_response(&mut text, Version::HTTP_11, head, &[length.as_bytes()]);
        let head_len = text.len() - EMPTY_LINE.len();
        Some(Self { head: text[..head_len].into(), rest: [EMPTY_LINE, body].concat().into() })
    }

    /// Writes the response with these further fields, each with its line end.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>, fields: &[&[u8]]) {
        let Self { head, rest } = self;
        out.reserve(head.len() + rest.len() + fields.iter().map(|field| field.len()).sum::<usize>());
        out.extend_from_slice(head);
        fields.iter().for_each(|field| out.extend_from_slice(field));
        out.extend_from_slice(rest);
    }
}

const EMPTY_LINE: &[u8] = b"\r\n";

/// The replies of rejections that several requests share, so that each is converted once.
pub(crate) struct ReplyCache {
    slots: [ArcSwapOption<CachedReply>; CACHED_REPLIES],
}

struct CachedReply {
    /// Owned, so that no other rejection has its address.
    rejection: Arc<RejectionResponse>,
    reply: Arc<SharedReply>,
}

const CACHED_REPLIES: usize = 64;

impl ReplyCache {
    /// Returns the reply of a rejection.
    pub(crate) fn get_or_convert(&self, rejection: &Arc<RejectionResponse>) -> Arc<SharedReply> {
        let slot = &self.slots[(Arc::as_ptr(rejection).addr() >> 6) % CACHED_REPLIES];
        if let Some(cached) = slot.load().as_ref().filter(|cached| Arc::ptr_eq(&cached.rejection, rejection))
        {
            cached.reply.render();
            return cached.reply.clone();
        }
        let reply = Arc::new(SharedReply::unrendered((&**rejection).into()));
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
            let (first, second) = (cache.get_or_convert(rejection), cache.get_or_convert(rejection));
            assert!([&first, &second].iter().all(|reply| reply.reply().body == rejection.body));
            assert!(second.rendered().is_some());
        }
    }

    #[test]
    fn reply_whose_fields_depend_on_the_request_is_not_rendered() {
        let rendered = |rejection: &RejectionResponse| RenderedReply::new(&LocalReply::from(rejection));
        let rejection = RejectionResponse::new(429).header("retry-after", "1").text("wait");
        let mut out = Vec::new();
        rendered(&rejection).unwrap().write(&mut out, &[b"a: b\r\n".as_slice(), b"c: ", b"d\r\n"]);
        let text = str::from_utf8(&out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let mut lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!((lines.remove(0), body), ("HTTP/1.1 429 Too Many Requests", "wait"));
        lines.retain(|line| !line.starts_with("content-type: "));
        assert_eq!(lines, ["retry-after: 1", "content-length: 4", "a: b", "c: d"]);
        for (name, value) in [("Date", "x"), ("x-request-id", "x"), ("expect", "x")] {
            assert!(rendered(&rejection.clone().header(name, value)).is_none(), "{name}");
        }
        assert!(rendered(&RejectionResponse::new(429)).is_some());
        assert!(rendered(&RejectionResponse::new(204)).is_none());
        assert!(rendered(&RejectionResponse::new(304)).is_none());
        let large = |size| rendered(&RejectionResponse::new(429).text("x".repeat(size)));
        assert_eq!([MAX_COPIED_FRAME, MAX_COPIED_FRAME + 1].map(|size| large(size).is_some()), [true, false]);
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
