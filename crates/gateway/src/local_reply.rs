//! A response of the gateway itself.

use crate::{
    http1::{ParsedResponse, write_response},
    proxy::X_REQUEST_ID,
    send_buffer::MAX_COPIED_FRAME,
};
use bytes::Bytes;
use http::{HeaderName, HeaderValue, Response, StatusCode, Version};
use tidegate_core::header::{SmallString, write_number};
use tidegate_observe::DenialId;
use tidegate_policy::head::{FieldKinds, is_hop_by_hop};
use tidegate_rule::{
    Hole, NumberForm, RejectionNumbers, RejectionResponse, RejectionTemplate, SharedRejection,
};

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

/// A reply that shares its text with others. An HTTP/1.1 connection copies the text, and fills in the numbers.
#[derive(Clone, Debug)]
pub struct SharedReply {
    rejection: SharedRejection,
    /// The id of the recorded denial.
    denial: Option<DenialId>,
}

/// The text of replies, as HTTP/1.1 sends it.
struct RenderedReply {
    /// The status line, and the fields that do not depend on the request.
    head: RenderedText,
    body: RenderedText,
    instance: InstanceMember,
}

/// Bytes with holes for numbers.
struct RenderedText {
    bytes: Box<[u8]>,
    /// Each with its position.
    holes: Box<[(usize, Hole)]>,
}

/// Whether the body names the denial that is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum InstanceMember {
    /// As the first member of problem details.
    First,
    None,
}

/// What differs between responses of HTTP/1.1 with the same text, besides their numbers.
pub(crate) struct ReplyFields<'a> {
    pub(crate) request_id: Option<&'a [u8]>,
    /// Empty, or a field with its line end.
    pub(crate) connection: &'static [u8],
    /// A field with its line end.
    pub(crate) date: &'a [u8],
}

impl SharedReply {
    /// The reply to a denial that is recorded.
    pub(crate) fn with_denial(self, denial: Option<DenialId>) -> Self {
        Self { denial, ..self }
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.rejection.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS)
    }

    /// Writes the response; returns the length of its body. `None` if it must be built.
    #[inline]
    pub(crate) fn write(&self, out: &mut Vec<u8>, fields: &ReplyFields<'_>) -> Option<usize> {
        let rendered = self.rejection.template().get_or_cache(RenderedReply::new)?.as_ref()?;
        Some(rendered.write(out, self.rejection.numbers(), self.denial.as_ref(), fields))
    }

    /// Builds the reply.
    pub(crate) fn to_reply(&self) -> LocalReply {
        let mut response = self.rejection.to_response();
        if let Some(id) = &self.denial {
            response.set_instance(&id.uri());
        }
        let mut reply = LocalReply::from(&response);
        if let Some(id) = &self.denial {
            reply.head.fields.set(DenialId::HEADER.as_bytes(), id.0.as_bytes());
        }
        reply
    }
}

impl From<SharedRejection> for SharedReply {
    fn from(rejection: SharedRejection) -> Self {
        Self { rejection, denial: None }
    }
}

impl RenderedReply {
    /// `None` if the fields depend on the request or on the connection, or if the body is too large to copy.
    fn new(template: &RejectionTemplate) -> Option<Self> {
        let LocalReply { head, body } = LocalReply::from(template.response());
        let depends_on_request = head.fields.may_contain(FieldKinds::FRAMING)
            || head.fields.may_contain(FieldKinds::HOP_BY_HOP)
            || head.fields.may_contain(FieldKinds::DATE)
            || head.fields.contains(X_REQUEST_ID)
            || head.fields.contains(DenialId::HEADER.as_bytes())
            || head.status.is_informational()
            || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        if depends_on_request || body.len() > MAX_COPIED_FRAME {
            return None;
        }
        let mut text = Vec::new();
        write_response(&mut text, Version::HTTP_11, &head, &[]);
        text.truncate(text.len() - EMPTY_LINE.len());
        Some(Self {
            head: RenderedText::new(str::from_utf8(&text).ok()?, template.form()),
            body: RenderedText::new(str::from_utf8(&body).ok()?, template.form()),
            instance: match template.response().is_problem() && body.starts_with(b"{") {
                true => InstanceMember::First,
                false => InstanceMember::None,
            },
        })
    }

    /// Writes the response; returns the length of its body. The fields have the order of a response that is built.
    fn write(
        &self,
        out: &mut Vec<u8>,
        numbers: &RejectionNumbers,
        denial: Option<&DenialId>,
        fields: &ReplyFields<'_>,
    ) -> usize {
        let Self { head, body, instance } = self;
        let instance = denial.filter(|_| *instance == InstanceMember::First).map(instance_member);
        let instance = instance.as_deref().unwrap_or_default();
        let body_len = body.len(numbers) + instance.len();
        out.reserve(head.max_len() + body_len + MAX_REPLY_FIELDS);
        head.write(out, numbers);
        if let Some(id) = denial {
            write_field(out, DenialId::HEADER.as_bytes(), id.0.as_bytes());
        }
        if let Some(id) = fields.request_id {
            write_field(out, X_REQUEST_ID, id);
        }
        out.extend_from_slice(b"content-length: ");
        let mut text = SmallString::default();
        // Writing to a string does not fail.
        let _ = write_number(&mut text, body_len as u64);
        out.extend_from_slice(text.as_str().as_bytes());
        out.extend_from_slice(EMPTY_LINE);
        out.extend_from_slice(fields.connection);
        out.extend_from_slice(fields.date);
        out.extend_from_slice(EMPTY_LINE);
        match instance {
            "" => body.write(out, numbers),
            instance => {
                let start = out.len();
                body.write(out, numbers);
                // After the brace.
                out.splice(start + 1..start + 1, instance.bytes());
            }
        }
        body_len
    }
}

impl RenderedText {
    fn new(text: &str, form: NumberForm) -> Self {
        let (mut bytes, mut holes) = (Vec::with_capacity(text.len()), Vec::new());
        for (part, hole) in form.split(text) {
            bytes.extend_from_slice(part.as_bytes());
            holes.extend(hole.map(|hole| (bytes.len(), hole)));
        }
        Self { bytes: bytes.into(), holes: holes.into() }
    }

    /// The length with these numbers.
    fn len(&self, numbers: &RejectionNumbers) -> usize {
        let number_len = |(_, hole): &(usize, Hole)| number_text(*hole, numbers).as_str().len();
        self.bytes.len() + self.holes.iter().map(number_len).sum::<usize>()
    }

    fn max_len(&self) -> usize {
        self.bytes.len() + self.holes.len() * MAX_NUMBER_LEN
    }

    fn write(&self, out: &mut Vec<u8>, numbers: &RejectionNumbers) {
        let mut start = 0;
        for (position, hole) in &self.holes {
            out.extend_from_slice(&self.bytes[start..*position]);
            out.extend_from_slice(number_text(*hole, numbers).as_str().as_bytes());
            start = *position;
        }
        out.extend_from_slice(&self.bytes[start..]);
    }
}

fn number_text(hole: Hole, numbers: &RejectionNumbers) -> SmallString {
    let mut text = SmallString::default();
    // Writing to a string does not fail.
    let _ = numbers.write(hole, &mut text);
    text
}

/// The digits of the largest number, or a date.
const MAX_NUMBER_LEN: usize = 20;
const EMPTY_LINE: &[u8] = b"\r\n";
/// Room for the fields that depend on the request.
const MAX_REPLY_FIELDS: usize = 192;

/// The member of problem details with the id of a denial.
fn instance_member(id: &DenialId) -> String {
    format!("\"instance\":\"{}\",", id.uri())
}

fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, EMPTY_LINE] {
        out.extend_from_slice(part);
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
    use proptest::prelude::*;
    use std::time::Duration;
    use tidegate_core::{Decision, Quota};
    use tidegate_overload::CallError;
    use tidegate_rule::{HeaderStyle, Limited};

    /// A rejection whose numbers are random, with a random header style.
    fn any_rejection() -> impl Strategy<Value = SharedRejection> {
        let numbers = proptest::collection::vec(prop_oneof![0..20_u64, 90..1_100_u64, any::<u64>()], 3);
        let style = prop_oneof![
            Just(HeaderStyle::Ietf),
            Just(HeaderStyle::Legacy),
            Just(HeaderStyle::Draft03),
            Just(HeaderStyle::None)
        ];
        let note = proptest::option::of(prop_oneof!["[ -~\u{e9}]{0,9}", "[\u{fdcf}-\u{fdf0}]{1,2}"]);
        let status = prop_oneof![Just(429_u16), 200..600_u16];
        (numbers, style, note, proptest::option::of("[ -~é]{0,40}"), status).prop_map(
            |(numbers, style, note, text, status)| {
                let limited = |wait| {
                    let denied = Decision::from_in_flight(3, 3).with_quota(0);
                    Limited::new("api", CallError::Limited(denied))
                        .with_quota(Quota::concurrency(3).ok())
                        .with_retry_after(Some(Duration::from_secs(wait)))
                };
                let render = |form| {
                    let wait = numbers[0] % 1_000_000_000;
                    let mut response =
                        RejectionResponse::from_limited_in(form, &limited(wait), style).status(status);
                    if let Some(note) = &note {
                        response = response.header("x-note", note.as_str());
                    }
                    match &text {
                        Some(text) => response.text(text.as_str()),
                        None => response,
                    }
                };
                let wait = (numbers[0] % 1_000_000_000).max(1);
                let values = RejectionNumbers::default().with(Hole::RETRY_AFTER, wait);
                match RejectionTemplate::new(render, &values) {
                    // Filled with other numbers than those of the first use.
                    Some(template) => {
                        SharedRejection::new(template.into(), values.with(Hole::RETRY_AFTER, numbers[1]))
                    }
                    None => render(NumberForm::Digits).into(),
                }
            },
        )
    }

    /// The response to a request with HTTP/1.1, as it is sent without the shared text.
    fn built_response(reply: &SharedReply, fields: &ReplyFields<'_>) -> Vec<u8> {
        let LocalReply { mut head, body } = reply.to_reply();
        if let Some(id) = fields.request_id {
            head.fields.set(X_REQUEST_ID, id);
        }
        head.fields.push(b"content-length", body.len().to_string().as_bytes());
        let mut out = Vec::new();
        write_response(&mut out, Version::HTTP_11, &head, &[fields.connection, fields.date]);
        out.extend_from_slice(&body);
        out
    }

    proptest! {
        #[test]
        fn written_reply_has_the_bytes_of_a_built_response(
            rejection in any_rejection(),
            id in proptest::option::of("[0-9a-f]{32}"),
            denial in proptest::option::of("[0-9a-z]{16}"),
            closes in any::<bool>(),
        ) {
            let reply = SharedReply::from(rejection).with_denial(denial.map(DenialId));
            let fields = ReplyFields {
                request_id: id.as_ref().map(String::as_bytes),
                connection: if closes { b"connection: close\r\n" } else { b"" },
                date: b"date: Thu, 01 Jan 1970 00:00:00 GMT\r\n",
            };
            let mut out = b"before".to_vec();
            let body_len = reply.write(&mut out, &fields);
            let has_body = !matches!(reply.status().as_u16(), 204 | 304);
            prop_assert_eq!(body_len.is_some(), has_body);
            if let Some(body_len) = body_len {
                let built = built_response(&reply, &fields);
                prop_assert_eq!(out[6..].escape_ascii().to_string(), built.escape_ascii().to_string());
                prop_assert_eq!(body_len, reply.to_reply().body.len());
            }
        }
    }

    #[test]
    fn reply_whose_fields_depend_on_the_request_is_built() {
        let fields = ReplyFields { request_id: None, connection: b"", date: b"" };
        let write = |rejection: &RejectionResponse| {
            let mut out = Vec::new();
            let body_len =
                SharedReply::from(SharedRejection::from(rejection.clone())).write(&mut out, &fields);
            (body_len, String::from_utf8(out).unwrap())
        };
        let rejection = RejectionResponse::new(429).header("retry-after", "1").text("wait");
        let (body_len, text) = write(&rejection);
        assert_eq!(body_len, Some(4));
        let lines = "HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-type: text/plain; charset=utf-8\r\n\
                     content-length: 4\r\n\r\nwait";
        assert_eq!(text, lines);
        for (name, value) in [("Date", "x"), ("x-request-id", "x"), ("expect", "x"), ("tidegate-denial", "x")]
        {
            assert_eq!(write(&rejection.clone().header(name, value)), (None, String::new()), "{name}");
        }
        assert!(write(&RejectionResponse::new(429)).0.is_some());
        assert!(write(&RejectionResponse::new(204)).0.is_none());
        assert!(write(&RejectionResponse::new(304)).0.is_none());
        let large = |size| write(&RejectionResponse::new(429).text("x".repeat(size))).0;
        assert_eq!([MAX_COPIED_FRAME, MAX_COPIED_FRAME + 1].map(large), [Some(MAX_COPIED_FRAME), None]);
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
