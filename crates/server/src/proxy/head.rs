//! Heads: what is checked, what is taken out, what is put in.

use super::{Failure, Introduction, introduction};
use crate::client::Client;
use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version,
    header::{self, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, TE, TRANSFER_ENCODING, UPGRADE},
    request, response,
};
use std::borrow::Cow;
use tidegate_policy::{
    matching::{PathError, normalize_path},
    model::{EscapedSlashes, Introduce, Underscores},
};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether the client wants to speak of something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Upgrade {
    Asked,
    NotAsked,
}

/// The longest name of a request that is taken over from a trusted proxy.
const LONGEST_ID: usize = 128;

/// The name of a request: a new one, or that of a trusted proxy.
pub(super) fn id(parts: &request::Parts, client: &Client) -> HeaderValue {
    let is_told = client.worker.introduce != Introduce::None;
    if !is_told && client.worker.log.is_none() && client.worker.tracer.is_none() {
        return HeaderValue::from_static("");
    }
    if !client.worker.trusts(client.origin.peer.ip()) {
        return client.worker.new_id();
    }
    match parts.headers.get(REQUEST_ID) {
        Some(id)
            if !id.is_empty() && id.len() <= LONGEST_ID && id.as_bytes().iter().all(u8::is_ascii_graphic) =>
        {
            id.clone()
        }
        _ => client.worker.new_id(),
    }
}

/// Tells the name of a request, where names are told.
pub(super) fn name(headers: &mut HeaderMap, id: &HeaderValue, client: &Client) {
    if client.worker.introduce != Introduce::None {
        headers.insert(REQUEST_ID, id.clone());
    }
}

/// The longest method.
const LONGEST_METHOD: usize = 32;

/// Refuses what servers might understand in different ways, and brings the rest into one form: a normalized path in the
/// request line, and one `Host`.
pub(super) fn check(parts: &mut request::Parts, client: &Client, length: Option<u64>) -> Result<(), Failure> {
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        return Err(Failure::Method);
    }
    if parts.method.as_str().len() > LONGEST_METHOD {
        return Err(Failure::Head("The method is too long."));
    }
    if length.is_some_and(|length| length > client.worker.terms.body_size) {
        return Err(Failure::TooLarge);
    }
    let (mut hosts, mut codings, mut cookies, mut lengths) = (0, 0, 0, Lengths::None);
    let (mut has_underscores, mut has_names, mut is_introduced) = (false, false, false);
    for (name, value) in &parts.headers {
        // HTTP/1.1 has them trimmed. In HTTP/2 a value with a space at its end is malformed (RFC 9113, 8.2.1), and a server
        // that trims it would see another value than rules do.
        if let [b' ' | b'\t', ..] | [.., b' ' | b'\t'] = value.as_bytes() {
            return Err(Failure::Head("A header value starts or ends with white space."));
        }
        has_underscores |= name.as_str().contains('_');
        is_introduced |= introduction::is_of_one(name);
        match *name {
            HOST => {
                hosts += 1;
                if value.is_empty() || !value.as_bytes().iter().copied().all(is_of_host) {
                    return Err(Failure::Head("The Host is not the name of one."));
                }
            }
            TRANSFER_ENCODING => {
                codings += 1;
                if codings > 1 || !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(Failure::Coding);
                }
            }
            header::COOKIE => cookies += 1,
            CONTENT_LENGTH => lengths.add(value),
            CONNECTION => has_names |= !matches!(value.as_bytes(), b"keep-alive" | b"close"),
            _ => {}
        }
    }
    // What no server is told must not be what rules decide on.
    if has_names {
        for name in named_by_connection(&parts.headers).iter().filter(|name| hop_by_hop(name).is_none()) {
            parts.headers.remove(name);
        }
    }
    if is_introduced && !client.worker.trusts(client.origin.peer.ip()) {
        introduction::forget(&mut parts.headers);
    }
    match parts.uri.authority() {
        // Nothing but `CONNECT` names a host alone.
        Some(_) if parts.uri.scheme().is_none() => {
            return Err(Failure::Head("The request line has no path."));
        }
        Some(authority) if authority.as_str().contains('@') => {
            return Err(Failure::Head("The request line has a user name in it."));
        }
        // The request line is stronger than Host.
        Some(authority) => {
            let host = HeaderValue::from_str(authority.as_str());
            let host = host.map_err(|_| Failure::Head("The host is not the name of one."))?;
            parts.headers.insert(HOST, host);
            let path = parts.uri.path_and_query().cloned();
            parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        }
        None if hosts == 0 && parts.version >= Version::HTTP_11 => {
            return Err(Failure::Head("The request names no host."));
        }
        None => {}
    }
    if let (Lengths::Odd, Some(length)) = (lengths, length) {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    if cookies > 1 {
        join_cookies(&mut parts.headers);
    }
    if hosts > 1 {
        return Err(Failure::Head("The request names more than one host."));
    }
    if has_underscores && client.worker.terms.underscores == Underscores::Drop {
        drop_underscores(&mut parts.headers);
    }
    normalize(parts, client.worker.terms.escaped_slashes)
}

/// Has rules and servers see one path, in one spelling.
fn normalize(parts: &mut request::Parts, slashes: EscapedSlashes) -> Result<(), Failure> {
    let path = parts.uri.path();
    let normal = normalize_path(path, slashes).map_err(Failure::Path)?;
    if normal == "*" && parts.method != Method::OPTIONS {
        return Err(Failure::Path(PathError::Relative));
    }
    if let Cow::Owned(normal) = normal {
        let target = match parts.uri.query() {
            Some(query) => format!("{normal}?{query}"),
            None => normal,
        };
        // It was a path before, and no character was added that none may have.
        parts.uri =
            Uri::from_maybe_shared(Bytes::from(target)).map_err(|_| Failure::Path(PathError::Escape))?;
    }
    Ok(())
}

/// Trailers of a request, without what only a head may say (RFC 9110, 6.5.1): some servers add them to the head, which
/// rules have decided on without them.
pub(super) fn clean_trailers(trailers: HeaderMap, client: &Client) -> HeaderMap {
    let is_of_head = |name: &HeaderName| {
        matches!(
            *name,
            HOST | CONTENT_LENGTH | EXPECT | header::AUTHORIZATION | header::COOKIE | header::RANGE
        ) || hop_by_hop(name).is_some()
            || introduction::is_of_one(name)
            || name.as_str().contains('_') && client.worker.terms.underscores == Underscores::Drop
    };
    let mut trailers = trailers;
    while let Some(name) = trailers.keys().find(|name| is_of_head(name)).cloned() {
        trailers.remove(name);
    }
    trailers
}

fn drop_underscores(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find(|name| name.as_str().contains('_')).cloned() {
        headers.remove(name);
    }
}

/// How a length is written, whatever it is.
enum Lengths {
    None,
    /// Once, in the usual way.
    One,
    /// Twice the same, or with zeros before it.
    Odd,
}

impl Lengths {
    fn add(&mut self, value: &HeaderValue) {
        *self = match (&self, value.as_bytes()) {
            (Self::None, [b'0'] | [b'1'..=b'9', ..]) if !value.as_bytes().contains(&b',') => Self::One,
            _ => Self::Odd,
        };
    }
}

/// HTTP/2 may send each cookie in a line of its own; HTTP/1.1 may not.
fn join_cookies(headers: &mut HeaderMap) {
    let all: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&all.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

fn is_of_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_~:[]%!$&'()*+,;=".contains(&byte)
}

/// Makes the head of a request that of one to a server: without what is meant for this connection only, and with what
/// the server should know of the client.
pub(super) fn prepare(parts: &mut request::Parts, client: &Client, id: &HeaderValue) -> Upgrade {
    let headers = &mut parts.headers;
    // Most requests have nothing of the kind, and to look at all names costs less than to look for one.
    let (mut has_hops, mut is_introduced) = (false, false);
    for name in headers.keys() {
        has_hops |= *name == EXPECT || hop_by_hop(name).is_some();
        is_introduced |= introduction::is_of_one(name);
    }
    let upgrade = if has_hops { unhop(headers, parts.version) } else { Upgrade::NotAsked };
    if is_introduced || client.worker.introduce != Introduce::None {
        let mut introduction = client.introduction.borrow_mut();
        introduction.get_or_insert_with(|| Box::new(Introduction::of(client))).write(headers);
    }
    name(headers, id, client);
    parts.version = Version::HTTP_11;
    upgrade
}

/// Takes out of a request what is meant for this connection only, but for what the next one needs to be told as well.
fn unhop(headers: &mut HeaderMap, version: Version) -> Upgrade {
    let upgrade = match version {
        Version::HTTP_11 => upgrade_of(headers),
        _ => None,
    };
    let wants_trailers = headers
        .get(TE)
        .is_some_and(|te| te.as_bytes().split(|byte| *byte == b',').any(|te| te.trim_ascii() == b"trailers"));
    strip(headers);
    headers.remove(EXPECT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    match upgrade {
        Some(protocol) => {
            headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
            headers.insert(UPGRADE, protocol);
            Upgrade::Asked
        }
        None => Upgrade::NotAsked,
    }
}

/// Makes the head of an answer that of one to a client. `length` is that of the body, where it is known and there is one.
pub(super) fn clean(parts: &mut response::Parts, length: Option<u64>) {
    let headers = &mut parts.headers;
    // A coding is stronger than a length (RFC 9112, 6.3), which is not that of the body then.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let mut lengths = Lengths::None;
    headers.get_all(CONTENT_LENGTH).iter().for_each(|length| lengths.add(length));
    match (lengths, length) {
        (Lengths::None | Lengths::One, _) => {}
        (Lengths::Odd, Some(length)) => drop(headers.insert(CONTENT_LENGTH, length.into())),
        (Lengths::Odd, None) => drop(headers.remove(CONTENT_LENGTH)),
    }
    strip(headers);
    parts.version = Version::HTTP_11;
}

fn upgrade_of(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let (protocol, None) = (protocols.next()?, protocols.next()) else { return None };
    // More requests would follow that nobody has judged.
    if tokens(protocol).any(is_http) {
        return None;
    }
    let is_meant = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(tokens)
        .any(|token| token.eq_ignore_ascii_case(b"upgrade"));
    is_meant.then(|| protocol.clone())
}

/// `h2c`, `h2c-14`, `HTTP/2.0` and others.
fn is_http(protocol: &[u8]) -> bool {
    let name = protocol.split(|byte| b"/-".contains(byte)).next().unwrap_or_default();
    [&b"h2c"[..], b"h2", b"http"].iter().any(|http| name.eq_ignore_ascii_case(http))
}

/// Takes out what is meant for one connection only, by its own name or named by `Connection`.
fn strip(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find_map(hop_by_hop) {
        if name == CONNECTION {
            for name in named_by_connection(headers) {
                headers.remove(name);
            }
        }
        headers.remove(name);
    }
}

fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut named = Vec::new();
    for (name, value) in headers {
        // What it says mostly names nothing that would stay.
        if *name != CONNECTION || matches!(value.as_bytes(), b"keep-alive" | b"close") {
            continue;
        }
        let names = tokens(value).filter_map(|token| HeaderName::from_bytes(token).ok());
        // A client cannot have these taken out: without them a request is another one.
        let is_vital = |name: &HeaderName| {
            matches!(*name, HOST | CONTENT_LENGTH | header::AUTHORIZATION | header::COOKIE)
        };
        named.extend(names.filter(|name| !is_vital(name)));
    }
    named
}

fn tokens(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The name again, if what it says is meant for one connection only.
#[inline]
fn hop_by_hop(name: &HeaderName) -> Option<HeaderName> {
    match *name {
        CONNECTION => Some(CONNECTION),
        TE => Some(TE),
        TRANSFER_ENCODING => Some(TRANSFER_ENCODING),
        UPGRADE => Some(UPGRADE),
        header::PROXY_AUTHENTICATE => Some(header::PROXY_AUTHENTICATE),
        header::PROXY_AUTHORIZATION => Some(header::PROXY_AUTHORIZATION),
        _ => match name.as_str() {
            "keep-alive" => Some(KEEP_ALIVE),
            "proxy-connection" => Some(PROXY_CONNECTION),
            _ => None,
        },
    }
}
