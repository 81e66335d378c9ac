//! Heads: what is taken out of them before they are forwarded, and what is put in.

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

/// Whether the client wants to speak of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    Requested,
    NotRequested,
}

/// The longest name of a request that is taken over from a trusted proxy.
const MAX_ID_LENGTH: usize = 128;

/// The name of a request: a new one, or that of a trusted proxy.
pub(super) fn request_id(parts: &request::Parts, client: &ClientConnection) -> HeaderValue {
    let is_told = client.worker.forwarded_headers != ForwardedHeaders::None;
    if !is_told && client.worker.log.is_none() && client.worker.tracer.is_none() {
        return HeaderValue::from_static("");
    }
    if !client.worker.is_trusted(client.origin.peer.ip()) {
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

/// Tells the name of a request, where names are told.
pub(super) fn set_request_id(headers: &mut HeaderMap, id: &HeaderValue, client: &ClientConnection) {
    if client.worker.forwarded_headers != ForwardedHeaders::None {
        headers.insert(X_REQUEST_ID, id.clone());
    }
}

/// Trailers of a request, without what only a head may say (RFC 9110, 6.5.1): some servers add them to the head, which
/// rules have decided on without them.
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

/// Makes the head of a request that of one to a server: without what is meant for this connection only, and with what
/// the server should know of the client.
pub(super) fn prepare_request(
    parts: &mut request::Parts,
    client: &ClientConnection,
    id: &HeaderValue,
) -> Upgrade {
    let headers = &mut parts.headers;
    // Most requests have nothing of the kind, and to look at all names costs less than to look for one.
    let (mut has_hops, mut is_introduced) = (false, false);
    for name in headers.keys() {
        has_hops |= *name == EXPECT || hop_by_hop_name(name).is_some();
        is_introduced |= is_forwarded_header(name);
    }
    let upgrade =
        if has_hops { strip_request_hop_by_hop(headers, parts.version) } else { Upgrade::NotRequested };
    if is_introduced || client.worker.forwarded_headers != ForwardedHeaders::None {
        let mut introduction = client.forwarded_header_writer.borrow_mut();
        introduction.get_or_insert_with(|| Box::new(ForwardedHeaderWriter::new(client))).write(headers);
    }
    set_request_id(headers, id, client);
    parts.version = Version::HTTP_11;
    upgrade
}

/// Takes out of a request what is meant for this connection only, but for what the next one needs to be told as well.
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

/// Makes the head of an answer that of one to a client. `length` is that of the body, where it is known and there is one.
pub(super) fn prepare_response(parts: &mut response::Parts, length: Option<u64>) {
    let headers = &mut parts.headers;
    // A coding is stronger than a length (RFC 9112, 6.3), which is not that of the body then.
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
    // More requests would follow that nobody has judged.
    if list_elements(protocol).any(is_http_protocol) {
        return None;
    }
    let is_meant = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(list_elements)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    is_meant.then(|| protocol.clone())
}

/// `h2c`, `h2c-14`, `HTTP/2.0` and others.
fn is_http_protocol(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| b"/-".contains(byte)).next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// Takes out what is meant for one connection only, by its own name or named by `Connection`.
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
