//! Prepares heads for forwarding: removes hop-by-hop headers, and adds forwarding headers.

use super::ForwardedHeaderWriter;
use crate::client::ClientConnection;
use http::{
    HeaderMap, HeaderName, HeaderValue, Version,
    header::{self, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE},
    request, response,
};
use tidegate_policy::{
    head::{
        ContentLengthForm, X_REQUEST_ID, connection_header_names, hop_by_hop_name, is_forwarded_header,
        list_elements,
    },
    model::{ForwardedHeaders, Underscores},
};

/// Whether the client requests an upgrade to another protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    Requested,
    NotRequested,
}

/// The maximum length of a request id that is accepted from a trusted proxy.
const MAX_ID_LENGTH: usize = 128;

/// The id of a request: a new one, or that of a trusted proxy.
pub(super) fn request_id(parts: &request::Parts, client: &ClientConnection) -> HeaderValue {
    let is_sent = client.worker.forwarded_headers != ForwardedHeaders::None;
    if !is_sent && client.worker.log.is_none() && client.worker.tracer.is_none() {
        return HeaderValue::from_static("");
    }
    if !client.worker.is_trusted(client.connection_info.peer.ip()) {
        return client.worker.new_id();
    }
    match parts.headers.get(X_REQUEST_ID) {
        Some(id)
            if !id.is_empty()
                && id.len() <= MAX_ID_LENGTH
                && id.as_bytes().iter().all(u8::is_ascii_graphic) =>
        {
            id.clone()
        }
        _ => client.worker.new_id(),
    }
}

/// Adds the request id header, if enabled.
pub(super) fn set_request_id(headers: &mut HeaderMap, id: &HeaderValue, client: &ClientConnection) {
    if client.worker.forwarded_headers != ForwardedHeaders::None {
        headers.insert(X_REQUEST_ID, id.clone());
    }
}

/// Removes trailers that only a head may contain (RFC 9110, 6.5.1): some servers merge trailers into the head, which the
/// rules did not see.
pub(super) fn strip_trailers(trailers: HeaderMap, client: &ClientConnection) -> HeaderMap {
    let is_of_head = |name: &HeaderName| {
        matches!(
            *name,
            HOST | CONTENT_LENGTH | EXPECT | header::AUTHORIZATION | header::COOKIE | header::RANGE
        ) || hop_by_hop_name(name).is_some()
            || is_forwarded_header(name)
            || name.as_str().contains('_')
                && client.worker.settings.head_limits.underscores == Underscores::Drop
    };
    let mut trailers = trailers;
    while let Some(name) = trailers.keys().find(|name| is_of_head(name)).cloned() {
        trailers.remove(name);
    }
    trailers
}

/// Prepares the head of a request for a server: removes hop-by-hop headers, and adds forwarding headers.
pub(super) fn prepare_request(
    parts: &mut request::Parts,
    client: &ClientConnection,
    id: &HeaderValue,
) -> Upgrade {
    let headers = &mut parts.headers;
    // Most requests have none of these, and one pass over all names is cheaper than a lookup of each.
    let has_hops = headers.keys().any(|name| *name == EXPECT || hop_by_hop_name(name).is_some());
    let upgrade =
        if has_hops { strip_request_hop_by_hop(headers, parts.version) } else { Upgrade::NotRequested };
    if client.worker.forwarded_headers != ForwardedHeaders::None {
        let mut writer = client.forwarded_header_writer.borrow_mut();
        writer.get_or_insert_with(|| Box::new(ForwardedHeaderWriter::new(client))).write(headers);
    }
    set_request_id(headers, id, client);
    parts.version = Version::HTTP_11;
    upgrade
}

/// Removes hop-by-hop headers of a request, except for an upgrade and `TE: trailers`.
fn strip_request_hop_by_hop(headers: &mut HeaderMap, version: Version) -> Upgrade {
    let upgrade = match version {
        Version::HTTP_11 => requested_upgrade(headers),
        _ => None,
    };
    let wants_trailers = headers
        .get(TE)
        .is_some_and(|te| te.as_bytes().split(|byte| *byte == b',').any(|te| te.trim_ascii() == b"trailers"));
    strip_hop_by_hop(headers);
    headers.remove(EXPECT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    match upgrade {
        Some(protocol) => {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
            Upgrade::Requested
        }
        None => Upgrade::NotRequested,
    }
}

/// Prepares the head of a response for a client. `length` is the length of the body, if it is known.
pub(super) fn prepare_response(parts: &mut response::Parts, length: Option<u64>) {
    let headers = &mut parts.headers;
    // `Transfer-Encoding` overrides `Content-Length` (RFC 9112, 6.3).
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let mut lengths = ContentLengthForm::None;
    headers.get_all(CONTENT_LENGTH).iter().for_each(|length| lengths.add(length));
    match (lengths, length) {
        (ContentLengthForm::None | ContentLengthForm::Canonical, _) => {}
        (ContentLengthForm::NonCanonical, Some(length)) => {
            drop(headers.insert(CONTENT_LENGTH, length.into()));
        }
        (ContentLengthForm::NonCanonical, None) => drop(headers.remove(CONTENT_LENGTH)),
    }
    strip_hop_by_hop(headers);
    parts.version = Version::HTTP_11;
}

fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (protocol, None) = (protocols.next()?, protocols.next()) else { return None };
    // Requests after an upgrade to HTTP would bypass the filter.
    if list_elements(protocol).any(is_http_protocol) {
        return None;
    }
    let is_requested = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(list_elements)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    is_requested.then(|| protocol.clone())
}

/// `h2c`, `h2c-14`, `HTTP/2.0` and others.
fn is_http_protocol(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| b"/-".contains(byte)).next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// Removes hop-by-hop headers, both standard ones and those that `Connection` names.
fn strip_hop_by_hop(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find_map(hop_by_hop_name) {
        if name == CONNECTION {
            for name in connection_header_names(headers) {
                headers.remove(name);
            }
        }
        headers.remove(name);
    }
}
