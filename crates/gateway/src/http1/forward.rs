//! What is forwarded of a message, without IO: no fields that apply to one connection, and one length.

use super::{ParsedResponse, ResponseFraming};
use http::{
    HeaderMap, HeaderName, StatusCode, Version,
    header::{self, CONTENT_LENGTH, EXPECT, HOST},
};
use tidegate_core::header::{SmallString, write_number};
use tidegate_policy::{
    head::{
        ContentLength, ContentLengthForm, FieldKinds, HeaderFields, is_forwarded_header, is_hop_by_hop,
        is_vital, list_elements,
    },
    model::Underscores,
};

/// Whether the client requests an upgrade to another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Upgrade {
    /// The fields of the upgrade are forwarded.
    Requested,
    /// There are no such fields.
    NotRequested,
}

/// Removes hop-by-hop headers of a request, except for an upgrade and `TE: trailers`.
pub fn strip_request_fields(fields: &mut HeaderFields, version: Version) -> Upgrade {
    if !fields.may_contain(FieldKinds::HOP_BY_HOP) {
        return Upgrade::NotRequested;
    }
    let upgrade = match version {
        Version::HTTP_11 => requested_upgrade(fields),
        _ => None,
    };
    let wants_trailers =
        fields.get(b"te").is_some_and(|te| list_elements(te).any(|coding| coding == b"trailers"));
    fields.retain(|name, _| name != b"expect" && !is_hop_by_hop(name));
    if wants_trailers {
        fields.push(b"te", b"trailers");
    }
    match upgrade {
        Some(protocol) => {
            fields.push(b"connection", b"upgrade");
            fields.push(b"upgrade", &protocol);
            Upgrade::Requested
        }
        None => Upgrade::NotRequested,
    }
}

/// Prepares the head of a response for a client. `length` is the length of the body, if it is known.
pub fn prepare_response(response: &mut ParsedResponse, length: Option<u64>) {
    let fields = &mut response.fields;
    if fields.may_contain(FieldKinds::FRAMING) {
        let (mut lengths, mut is_coded) = (ContentLength::default(), false);
        for (name, value) in fields.iter() {
            match name {
                // An invalid one was rejected; a response without a body may have any.
                b"content-length" if lengths.add(value).is_err() => {
                    lengths.form = ContentLengthForm::NonCanonical;
                }
                b"transfer-encoding" => is_coded = true,
                _ => {}
            }
        }
        // `Transfer-Encoding` overrides `Content-Length` (RFC 9112, 6.3), and 204 has none (RFC 9110, 8.6).
        if is_coded
            || lengths.form == ContentLengthForm::NonCanonical
            || response.status == StatusCode::NO_CONTENT
        {
            fields.remove(b"content-length");
            if let Some(length) = length.filter(|_| !is_coded) {
                fields.push(b"content-length", length.to_string().as_bytes());
            }
        }
    }
    // The usual options name no headers.
    if fields.may_contain(FieldKinds::CONNECTION)
        && !fields.get_all(b"connection").all(|value| matches!(value, b"keep-alive" | b"close"))
    {
        fields.remove_connection_options(|name| !is_vital(name));
    }
    if fields.may_contain(FieldKinds::HOP_BY_HOP) {
        fields.retain(|name, _| !is_hop_by_hop(name));
    }
}

/// Prepares the head of a 101 response for a client. It has no body, and names nothing but the upgrade in `Connection`.
pub fn prepare_switch(response: &mut ParsedResponse) {
    let fields = &mut response.fields;
    let protocols: Vec<_> = fields.get_all(b"upgrade").map(<[u8]>::to_vec).collect();
    fields.remove_connection_options(|name| !is_vital(name));
    fields.retain(|name, _| !is_hop_by_hop(name) && name != b"content-length");
    fields.push(b"connection", b"upgrade");
    protocols.iter().for_each(|protocol| fields.push(b"upgrade", protocol));
}

fn requested_upgrade(fields: &HeaderFields) -> Option<Vec<u8>> {
    let mut protocols = fields.get_all(b"upgrade");
    let (protocol, None) = (protocols.next()?, protocols.next()) else { return None };
    // Requests after an upgrade to HTTP would bypass the filter, and so would those in a TLS connection.
    if list_elements(protocol).any(may_carry_requests) {
        return None;
    }
    let is_requested = fields
        .get_all(b"connection")
        .flat_map(list_elements)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    is_requested.then(|| protocol.to_vec())
}

/// `h2c`, `h2c-14`, `HTTP/2.0`, `TLS/1.0` and others.
fn may_carry_requests(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| b"/-".contains(byte)).next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http", b"tls"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Removes trailers of a request that only a head may contain (RFC 9110, 6.5.1): some servers merge trailers into the head, which the
/// rules did not see.
pub fn strip_request_trailers(trailers: &mut HeaderMap, underscores: Underscores) {
    let is_of_head = |name: &HeaderName| {
        let text = name.as_str().as_bytes();
        matches!(
            *name,
            HOST | CONTENT_LENGTH | EXPECT | header::AUTHORIZATION | header::COOKIE | header::RANGE
        ) || is_hop_by_hop(text)
            || is_forwarded_header(text)
            || text.contains(&b'_') && underscores == Underscores::Drop
    };
    remove_headers(trailers, is_of_head);
}

/// Removes trailers of a response that describe its body or its connection.
pub fn strip_response_trailers(trailers: &mut HeaderMap) {
    remove_headers(trailers, |name| {
        matches!(
            *name,
            CONTENT_LENGTH | header::CONTENT_ENCODING | header::CONTENT_TYPE | header::CONTENT_RANGE
        ) || is_hop_by_hop(name.as_str().as_bytes())
    });
}

fn remove_headers(headers: &mut HeaderMap, is_removed: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| is_removed(name)).cloned() {
        headers.remove(name);
    }
}

/// How the body of the response to a request of this version and with this method ends. `length` is that of the body, if it is
/// known. Adds a missing `Content-Length`.
pub fn frame_response(
    response: &mut ParsedResponse,
    version: Version,
    method: &str,
    length: Option<u64>,
) -> ResponseFraming {
    let has_no_body = response.has_no_body(method);
    let fields = &mut response.fields;
    match (declared_length(fields), length) {
        (None, Some(length @ 1..)) if method == "HEAD" => {
            push_content_length(fields, length);
            ResponseFraming::None
        }
        _ if has_no_body => ResponseFraming::None,
        (Some(length), _) => ResponseFraming::Length(length),
        (None, Some(length)) => {
            push_content_length(fields, length);
            ResponseFraming::Length(length)
        }
        (None, None) if version >= Version::HTTP_11 => ResponseFraming::Chunked,
        (None, None) => ResponseFraming::UntilClose,
    }
}

/// The length in the head of a response. An invalid one, which no body has, is 0.
fn declared_length(fields: &HeaderFields) -> Option<u64> {
    let value = fields.may_contain(FieldKinds::FRAMING).then(|| fields.get(b"content-length"))??;
    let mut length = ContentLength::default();
    Some(length.add(value).ok().and(length.value).unwrap_or(0))
}

fn push_content_length(fields: &mut HeaderFields, length: u64) {
    let mut text = SmallString::default();
    // Writing to a string does not fail.
    let _ = write_number(&mut text, length);
    fields.push(b"content-length", text.as_str().as_bytes());
}
