//! The head of a request, as the gateway checks it before rules decide on it.
//!
//! Servers disagree on some requests: two `Host` headers, `/a/..;/b`, a space at the end of a value. [`check`] refuses them and
//! brings the rest into one form, so that rules decide on what is forwarded. The gateway and `explain` call the same function.

use crate::{
    matching::{PathError, normalize_path},
    model::{Connections, EscapedSlashes, Underscores},
};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Uri, Version,
    header::{self, CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE},
    request,
};
use std::{any::Any, borrow::Cow, fmt, net::IpAddr};
use tidegate_rule::request::RequestHead;

/// A request over HTTP, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestHead<'a> {
    parts: &'a request::Parts,
    peer: IpAddr,
    client: Option<IpAddr>,
    listener: Option<&'a str>,
}

impl<'a> HttpRequestHead<'a> {
    /// A request that came from `peer`. Its client is the peer, or the address that a trusted proxy names.
    pub fn new(parts: &'a request::Parts, peer: IpAddr) -> Self {
        Self { parts, peer: peer.to_canonical(), client: None, listener: None }
    }

    /// The same with the client resolved already.
    #[must_use]
    pub fn with_client(self, client: IpAddr) -> Self {
        Self { client: Some(client), ..self }
    }

    /// The same through the listener of this name.
    #[must_use]
    pub fn with_listener(self, listener: Option<&'a str>) -> Self {
        Self { listener, ..self }
    }
}

impl RequestHead for HttpRequestHead<'_> {
    fn method(&self) -> &str {
        self.parts.method.as_str()
    }

    fn path(&self) -> &str {
        self.parts.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.parts.uri.query()
    }

    fn host(&self) -> Option<&str> {
        self.parts.uri.host().or_else(|| self.parts.headers.get(HOST)?.to_str().ok())
    }

    fn route(&self) -> Option<&str> {
        None
    }

    #[inline]
    fn peer(&self) -> Option<IpAddr> {
        Some(self.peer)
    }

    #[inline]
    fn client(&self) -> Option<IpAddr> {
        self.client
    }

    fn listener(&self) -> Option<&str> {
        self.listener
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.parts.headers.get(name).map(HeaderValue::as_bytes)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.parts.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn extensions(&self) -> Option<&dyn Any> {
        None
    }
}

/// What [`check`] needs to know of `connections` in a policy.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// `body-size`, in bytes.
    pub body_size: u64,
    /// `escaped-slashes`.
    pub escaped_slashes: EscapedSlashes,
    /// `underscores-in-headers`.
    pub underscores: Underscores,
}

impl From<&Connections> for HeadLimits {
    fn from(connections: &Connections) -> Self {
        Self {
            body_size: connections.body_size.unwrap_or(u64::MAX),
            escaped_slashes: connections.escaped_slashes,
            underscores: connections.underscores,
        }
    }
}

/// Why a request is refused before any rule decides on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// It breaks a rule of HTTP that servers do not agree on.
    Malformed(&'static str),
    /// The path is invalid, or servers do not agree on it.
    Path(PathError),
    /// A transfer coding other than `chunked`.
    TransferCoding,
    /// `CONNECT` or `TRACE`.
    Method,
    /// The body is larger than `body-size`.
    TooLarge,
}

impl HeadError {
    /// The status of the answer.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Path(_) => 400,
            Self::Method => 405,
            Self::TooLarge => 413,
            Self::TransferCoding => 501,
        }
    }

    /// What is wrong, in one line.
    pub fn message(self) -> &'static str {
        match self {
            Self::Malformed(message) => message,
            Self::Path(error) => error.message(),
            Self::TransferCoding => "The only transfer coding that is understood is chunked.",
            Self::Method => "CONNECT and TRACE are not allowed here.",
            Self::TooLarge => "The body of the request is larger than is allowed.",
        }
    }

    /// Whether the connection is closed afterwards: what follows on it cannot be told from this request.
    pub fn should_close(self) -> bool {
        match self {
            Self::Malformed(_) | Self::TransferCoding | Self::TooLarge => true,
            Self::Path(_) | Self::Method => false,
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for HeadError {}

/// The longest method.
const MAX_METHOD_LEN: usize = 32;

/// Refuses what servers might understand in different ways, and brings the rest into one form: a normalized path in the
/// request line, one `Host`, and no header that is not forwarded.
///
/// `length` is that of the body, where it is known. `is_trusted` says whether the peer is a trusted proxy; few requests need
/// to know.
pub fn check(
    parts: &mut request::Parts,
    limits: &HeadLimits,
    length: Option<u64>,
    is_trusted: impl FnOnce() -> bool,
) -> Result<(), HeadError> {
    if matches!(parts.method, Method::CONNECT | Method::TRACE) {
        return Err(HeadError::Method);
    }
    if parts.method.as_str().len() > MAX_METHOD_LEN {
        return Err(HeadError::Malformed("The method is too long."));
    }
    if length.is_some_and(|length| length > limits.body_size) {
        return Err(HeadError::TooLarge);
    }
    let (mut hosts, mut codings, mut cookies, mut lengths) = (0, 0, 0, ContentLengthForm::None);
    let (mut has_underscores, mut has_names, mut is_forwarded) = (false, false, false);
    for (name, value) in &parts.headers {
        // HTTP/1.1 has them trimmed. In HTTP/2 a value with a space at its end is malformed (RFC 9113, 8.2.1), and a server
        // that trims it would see another value than rules do.
        if let [b' ' | b'\t', ..] | [.., b' ' | b'\t'] = value.as_bytes() {
            return Err(HeadError::Malformed("A header value starts or ends with white space."));
        }
        has_underscores |= name.as_str().contains('_');
        is_forwarded |= is_forwarded_header(name);
        match *name {
            HOST => {
                hosts += 1;
                if value.is_empty() || !value.as_bytes().iter().copied().all(is_host_byte) {
                    return Err(HeadError::Malformed("The Host is not the name of one."));
                }
            }
            TRANSFER_ENCODING => {
                codings += 1;
                if codings > 1 || !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked") {
                    return Err(HeadError::TransferCoding);
                }
            }
            header::COOKIE => cookies += 1,
            CONTENT_LENGTH => lengths.add(value),
            CONNECTION => has_names |= !matches!(value.as_bytes(), b"keep-alive" | b"close"),
            _ => {}
        }
    }
    // What is not forwarded must not be what rules decide on.
    if has_names {
        for name in
            connection_header_names(&parts.headers).iter().filter(|name| hop_by_hop_name(name).is_none())
        {
            parts.headers.remove(name);
        }
    }
    if is_forwarded && !is_trusted() {
        for name in [X_FORWARDED_FOR, X_FORWARDED_PROTO, X_FORWARDED_HOST, X_REAL_IP, X_REQUEST_ID] {
            parts.headers.remove(name);
        }
        parts.headers.remove(header::FORWARDED);
    }
    match parts.uri.authority() {
        // Nothing but `CONNECT` names a host alone.
        Some(_) if parts.uri.scheme().is_none() => {
            return Err(HeadError::Malformed("The request line has no path."));
        }
        Some(authority) if authority.as_str().contains('@') => {
            return Err(HeadError::Malformed("The request line has a user name in it."));
        }
        // The request line is stronger than Host.
        Some(authority) => {
            let host = HeaderValue::from_str(authority.as_str());
            let host = host.map_err(|_| HeadError::Malformed("The Host is not the name of one."))?;
            parts.headers.insert(HOST, host);
            let path = parts.uri.path_and_query().cloned();
            parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        }
        None if hosts == 0 && parts.version >= Version::HTTP_11 => {
            return Err(HeadError::Malformed("The request names no host."));
        }
        None => {}
    }
    if let (ContentLengthForm::NonCanonical, Some(length)) = (lengths, length) {
        parts.headers.insert(CONTENT_LENGTH, length.into());
    }
    if cookies > 1 {
        join_cookies(&mut parts.headers);
    }
    if hosts > 1 {
        return Err(HeadError::Malformed("The request names more than one host."));
    }
    if has_underscores && limits.underscores == Underscores::Drop {
        drop_underscores(&mut parts.headers);
    }
    normalize(parts, limits.escaped_slashes)
}

/// Has rules and servers see one path, in one spelling.
fn normalize(parts: &mut request::Parts, slashes: EscapedSlashes) -> Result<(), HeadError> {
    let path = parts.uri.path();
    let normal = normalize_path(path, slashes).map_err(HeadError::Path)?;
    if normal == "*" && parts.method != Method::OPTIONS {
        return Err(HeadError::Path(PathError::Relative));
    }
    if let Cow::Owned(normal) = normal {
        let target = match parts.uri.query() {
            Some(query) => format!("{normal}?{query}"),
            None => normal,
        };
        // It was a path before, and no character was added that none may have.
        parts.uri = Uri::try_from(target).map_err(|_| HeadError::Path(PathError::Escape))?;
    }
    Ok(())
}

fn drop_underscores(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find(|name| name.as_str().contains('_')).cloned() {
        headers.remove(name);
    }
}

/// How a length is written, whatever it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLengthForm {
    /// There is none.
    None,
    /// Once, in the usual way.
    Canonical,
    /// Twice the same, or with zeros before it.
    NonCanonical,
}

impl ContentLengthForm {
    /// Adds one more value of `Content-Length`.
    pub fn add(&mut self, value: &HeaderValue) {
        *self = match (&self, value.as_bytes()) {
            (Self::None, [b'0'] | [b'1'..=b'9', ..]) if !value.as_bytes().contains(&b',') => Self::Canonical,
            _ => Self::NonCanonical,
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

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_~:[]%!$&'()*+,;=".contains(&byte)
}

/// `X-Forwarded-For`.
pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
/// `X-Forwarded-Proto`.
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// `X-Forwarded-Host`.
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
/// `X-Real-IP`: servers behind nginx read it; nobody but a trusted proxy may set it.
pub const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// `X-Request-Id`.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether a header says something of the client that only a trusted proxy may say.
#[inline]
pub fn is_forwarded_header(name: &HeaderName) -> bool {
    *name == header::FORWARDED
        || name.as_str().starts_with("x-forwarded-")
        || *name == X_REQUEST_ID
        || *name == X_REAL_IP
}

/// The headers that `Connection` names.
pub fn connection_header_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut named = Vec::new();
    for (name, value) in headers {
        // What it says mostly names nothing that would stay.
        if *name != CONNECTION || matches!(value.as_bytes(), b"keep-alive" | b"close") {
            continue;
        }
        let names = list_elements(value).filter_map(|token| HeaderName::from_bytes(token).ok());
        // A client cannot have these taken out: without them a request is another one.
        let is_vital = |name: &HeaderName| {
            matches!(*name, HOST | CONTENT_LENGTH | header::AUTHORIZATION | header::COOKIE)
        };
        named.extend(names.filter(|name| !is_vital(name)));
    }
    named
}

/// The elements of a value that is a list.
pub fn list_elements(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The name again, if the header is meant for one connection only.
#[inline]
pub fn hop_by_hop_name(name: &HeaderName) -> Option<HeaderName> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn check_head(target: &str, method: &str, headers: &[(&str, &str)]) -> Result<request::Parts, HeadError> {
        let request = Request::builder().method(method).uri(target);
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let mut parts = request.body(()).unwrap().into_parts().0;
        let limits = HeadLimits { body_size: 3, ..HeadLimits::from(&Connections::default()) };
        let length =
            parts.headers.get(CONTENT_LENGTH).map(|length| length.to_str().unwrap().parse().unwrap());
        check(&mut parts, &limits, length, || false).map(|()| parts)
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        let host = ("host", "a");
        let long = "M".repeat(33);
        for (target, method, headers, status, message) in [
            ("/", "TRACE", &[host][..], 405, "CONNECT and TRACE are not allowed here."),
            ("/", &long, &[host], 400, "The method is too long."),
            (
                "/",
                "POST",
                &[host, ("content-length", "4")],
                413,
                "The body of the request is larger than is allowed.",
            ),
            ("/", "GET", &[host, ("x", "a ")], 400, "A header value starts or ends with white space."),
            ("/", "GET", &[("host", "a b")], 400, "The Host is not the name of one."),
            ("/", "GET", &[], 400, "The request names no host."),
            ("/", "GET", &[host, host], 400, "The request names more than one host."),
            ("a:80", "GET", &[host], 400, "The request line has no path."),
            ("http://eve@a/", "GET", &[host], 400, "The request line has a user name in it."),
            (
                "/",
                "GET",
                &[host, ("transfer-encoding", "gzip")],
                501,
                "The only transfer coding that is understood is chunked.",
            ),
            ("/..", "GET", &[host], 400, "invalid path: `..` leads out of the root"),
            ("*", "GET", &[host], 400, "invalid path: it does not start with a slash"),
        ] {
            let error = check_head(target, method, headers).unwrap_err();
            assert_eq!((error.status(), error.message()), (status, message));
        }
    }

    #[test]
    fn head_check_strips_untrusted_headers() {
        let headers = [
            ("host", "a"),
            ("connection", "x-user"),
            ("x-user", "eve"),
            ("x_user", "eve"),
            ("x-forwarded-for", "192.0.2.1"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ];
        let parts = check_head("http://b/x/../y?q", "GET", &headers).unwrap();
        assert_eq!(parts.uri, "/y?q");
        let values = |name: &str| parts.headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values("host"), ["b"]);
        assert_eq!(values("cookie"), ["a=1; b=2"]);
        assert!(["x-user", "x_user", "x-forwarded-for"].iter().all(|name| values(name).is_empty()));
    }
}
