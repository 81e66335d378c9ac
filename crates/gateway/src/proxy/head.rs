//! Prepares heads for forwarding: removes hop-by-hop headers, and adds forwarding headers.

use super::ForwardedHeaderWriter;
use crate::{client::ClientConnection, http1::ParsedResponse};
use http::{
    HeaderMap, HeaderName, StatusCode, Version,
    header::{self, CONTENT_LENGTH, EXPECT, HOST},
};
use tidegate_policy::{
    head::{
        ContentLength, ContentLengthForm, FieldKinds, HeaderFields, ParsedRequest, is_forwarded_header,
        is_hop_by_hop, is_vital, list_elements,
    },
    model::{ForwardedHeaders, Underscores},
};

/// Whether the client requests an upgrade to another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    Requested,
    NotRequested,
}

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) enum RequestId {
    /// Neither sent nor logged.
    None,
    Generated([u8; 32]),
    /// That of a trusted proxy.
    Received(Box<[u8]>),
}

impl RequestId {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::None => b"",
            Self::Generated(id) => id,
            Self::Received(id) => id,
        }
    }
}

/// The maximum length of a request id that is accepted from a trusted proxy.
const MAX_ID_LENGTH: usize = 128;

/// The header of a request id.
pub(crate) const X_REQUEST_ID: &[u8] = b"x-request-id";

/// The id of a request: a new one, or that of a trusted proxy.
pub(super) fn request_id(request: &ParsedRequest, client: &ClientConnection) -> RequestId {
    let is_sent = client.worker.forwarded_headers != ForwardedHeaders::None;
    if !is_sent && client.worker.log.is_none() && client.worker.tracer.is_none() {
        return RequestId::None;
    }
    if client.worker.is_trusted(client.connection_info.peer.ip())
        && let Some(id) = request.fields.get(X_REQUEST_ID)
        && !id.is_empty()
        && id.len() <= MAX_ID_LENGTH
        && id.iter().all(u8::is_ascii_graphic)
    {
        return RequestId::Received(id.into());
    }
    RequestId::Generated(random_id())
}

/// A random id. It is not secret.
fn random_id() -> [u8; 32] {
    let mut text = [0; 32];
    for part in text.chunks_exact_mut(8) {
        part.copy_from_slice(&hex_digits(fastrand::u32(..)));
    }
    text
}

/// Formats a number as hexadecimal digits, all at once: each half byte becomes one byte of the result.
fn hex_digits(number: u32) -> [u8; 8] {
    const BYTE_ONES: u64 = 0x0101_0101_0101_0101;
    let spread = |bits: u64, by: u32, mask: u64| (bits | bits << by) & mask;
    let halfwords = spread(u64::from(number), 16, 0x0000_ffff_0000_ffff);
    let bytes = spread(halfwords, 8, 0x00ff_00ff_00ff_00ff);
    let nibbles = spread(bytes, 4, 0x0f0f_0f0f_0f0f_0f0f);
    // 1 for each digit that is a letter: 10 + 6 = 16.
    let letters = (nibbles + BYTE_ONES * 6) >> 4 & BYTE_ONES;
    let letter_offset = u64::from(b'a' - b'0' - 10);
    (nibbles + BYTE_ONES * u64::from(b'0') + letters * letter_offset).to_be_bytes()
}

/// Adds the request id header, if enabled.
pub(super) fn set_request_id(fields: &mut HeaderFields, id: &RequestId, client: &ClientConnection) {
    if let Some(id) = sent_request_id(id, client) {
        fields.set(X_REQUEST_ID, id);
    }
}

/// The request id that servers and clients get, if enabled.
pub(super) fn sent_request_id<'i>(id: &'i RequestId, client: &ClientConnection) -> Option<&'i [u8]> {
    let is_sent = client.worker.forwarded_headers != ForwardedHeaders::None;
    Some(id.as_bytes()).filter(|id| is_sent && !id.is_empty())
}

/// Removes trailers of a request that only a head may contain (RFC 9110, 6.5.1): some servers merge trailers into the head, which the
/// rules did not see.
pub(super) fn strip_request_trailers(trailers: &mut HeaderMap, client: &ClientConnection) {
    let is_of_head = |name: &HeaderName| {
        let text = name.as_str().as_bytes();
        matches!(
            *name,
            HOST | CONTENT_LENGTH | EXPECT | header::AUTHORIZATION | header::COOKIE | header::RANGE
        ) || is_hop_by_hop(text)
            || is_forwarded_header(text)
            || text.contains(&b'_') && client.worker.settings.head_limits.underscores == Underscores::Drop
    };
    remove_headers(trailers, is_of_head);
}

/// Removes trailers of a response that describe its body or its connection.
pub(super) fn strip_response_trailers(trailers: &mut HeaderMap) {
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

/// Prepares the head of a request for a server: removes hop-by-hop headers, and adds forwarding headers.
pub(super) fn prepare_request(
    request: &mut ParsedRequest,
    client: &ClientConnection,
    id: &RequestId,
) -> Upgrade {
    let fields = &mut request.fields;
    let upgrade = match fields.may_contain(FieldKinds::HOP_BY_HOP) {
        true => strip_request_hop_by_hop(fields, request.version),
        false => Upgrade::NotRequested,
    };
    if client.worker.forwarded_headers != ForwardedHeaders::None {
        let mut writer = client.forwarded_header_writer.borrow_mut();
        writer.get_or_insert_with(|| Box::new(ForwardedHeaderWriter::new(client))).write(fields);
    }
    set_request_id(fields, id, client);
    upgrade
}

/// Removes hop-by-hop headers of a request, except for an upgrade and `TE: trailers`.
fn strip_request_hop_by_hop(fields: &mut HeaderFields, version: Version) -> Upgrade {
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
pub(super) fn prepare_response(response: &mut ParsedResponse, length: Option<u64>) {
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
pub(super) fn prepare_switch(response: &mut ParsedResponse) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_match_the_number() {
        for number in [0, 1, 9, 0xa, 0xf, 0x10, 0x0123_4567, 0x89ab_cdef, 0x9f9f_a0a0, u32::MAX] {
            assert_eq!(hex_digits(number).as_slice(), format!("{number:08x}").as_bytes());
        }
    }
}
