//! Checks the head of a request before rules are evaluated.
//!
//! Servers interpret some requests differently: two `Host` headers, `/a/..;/b`, a trailing space in a value. [`check`] rejects
//! them and normalizes all others, so that rules see exactly what is forwarded. The gateway and `explain` call the same function.

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

/// The head of an HTTP request, for rules.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestHead<'a> {
    parts: &'a request::Parts,
    peer: IpAddr,
    client: Option<IpAddr>,
    listener: Option<&'a str>,
}

impl<'a> HttpRequestHead<'a> {
    /// The head of a request from `peer`. The client is the peer, or the address that a trusted proxy reports.
    pub fn new(parts: &'a request::Parts, peer: IpAddr) -> Self {
        Self { parts, peer: peer.to_canonical(), client: None, listener: None }
    }

    /// The request.
    pub fn parts(&self) -> &'a request::Parts {
        self.parts
    }

    /// Sets the resolved client address.
    #[must_use]
    pub fn with_client(self, client: IpAddr) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Sets the name of the listener.
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

/// The settings of `connections` in a policy that [`check`] needs.
#[derive(Clone, Copy, Debug)]
pub struct HeadLimits {
    /// `max-body-size`, in bytes.
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

/// The reason for rejecting a request before any rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadError {
    /// The request violates HTTP in a way that servers handle differently.
    Malformed(&'static str),
    /// The path is invalid, or servers interpret it differently.
    Path(PathError),
    /// A transfer coding other than `chunked`.
    TransferCoding,
    /// `CONNECT` or `TRACE`.
    Method,
    /// The body is larger than `max-body-size`.
    TooLarge,
}

impl HeadError {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Path(_) => 400,
            Self::Method => 405,
            Self::TooLarge => 413,
            Self::TransferCoding => 501,
        }
    }

    /// The problem, in one line.
    pub fn message(self) -> &'static str {
        match self {
            Self::Malformed(message) => message,
            Self::Path(error) => error.message(),
            Self::TransferCoding => "unsupported transfer coding; only chunked is supported",
            Self::Method => "CONNECT and TRACE are not allowed",
            Self::TooLarge => "request body too large",
        }
    }

    /// Whether the connection must be closed, because the end of the request is ambiguous or unread.
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

/// The maximum length of a method.
const MAX_METHOD_LEN: usize = 32;

/// Rejects ambiguous requests, and normalizes all others: a normalized path in the request line, one `Host`, and no header
/// that is not forwarded.
///
/// `length` is the length of the body, if known. `is_trusted` returns whether the peer is a trusted proxy; it is only called
/// for requests with forwarded headers.
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
        return Err(HeadError::Malformed("method too long"));
    }
    if length.is_some_and(|length| length > limits.body_size) {
        return Err(HeadError::TooLarge);
    }
    let (mut hosts, mut codings, mut cookies, mut lengths) = (0, 0, 0, ContentLengthForm::None);
    let (mut has_underscores, mut has_names, mut is_forwarded) = (false, false, false);
    for (name, value) in &parts.headers {
        // HTTP/1.1 values are trimmed. In HTTP/2 a value with a trailing space is malformed (RFC 9113, 8.2.1), and a server
        // that trims it would use another value than rules do.
        if let [b' ' | b'\t', ..] | [.., b' ' | b'\t'] = value.as_bytes() {
            return Err(HeadError::Malformed("header value with leading or trailing whitespace"));
        }
        has_underscores |= name.as_str().contains('_');
        is_forwarded |= is_forwarded_header(name);
        match *name {
            HOST => {
                hosts += 1;
                if value.is_empty() || !value.as_bytes().iter().copied().all(is_host_byte) {
                    return Err(HeadError::Malformed("invalid Host header"));
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
    // Rules must not use headers that are not forwarded.
    if has_names {
        for name in
            connection_header_names(&parts.headers).iter().filter(|name| hop_by_hop_name(name).is_none())
        {
            parts.headers.remove(name);
        }
    }
    if is_forwarded && !is_trusted() {
        while let Some(name) = parts.headers.keys().find(|name| is_forwarded_header(name)).cloned() {
            parts.headers.remove(name);
        }
    }
    match parts.uri.authority() {
        // Only `CONNECT` has a target without a path.
        Some(_) if parts.uri.scheme().is_none() => {
            return Err(HeadError::Malformed("missing path in the request line"));
        }
        Some(authority) if authority.as_str().contains('@') => {
            return Err(HeadError::Malformed("user name in the request line"));
        }
        // The host in the request line takes precedence over `Host` (RFC 9112, 3.2.2).
        Some(authority) => {
            let host = HeaderValue::from_str(authority.as_str());
            let host = host.map_err(|_| HeadError::Malformed("invalid Host header"))?;
            parts.headers.insert(HOST, host);
            let path = parts.uri.path_and_query().cloned();
            parts.uri = path.map_or_else(|| Uri::from_static("/"), Uri::from);
        }
        None if hosts == 0 && parts.version >= Version::HTTP_11 => {
            return Err(HeadError::Malformed("missing Host header"));
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
        return Err(HeadError::Malformed("multiple Host headers"));
    }
    if has_underscores && limits.underscores == Underscores::Drop {
        drop_underscores(&mut parts.headers);
    }
    normalize(parts, limits.escaped_slashes)
}

/// Replaces the path by its normalized form, so that rules and servers use the same one.
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
        // Cannot fail: normalization adds no character that is invalid in a path.
        parts.uri = Uri::try_from(target).map_err(|_| HeadError::Path(PathError::Escape))?;
    }
    Ok(())
}

fn drop_underscores(headers: &mut HeaderMap) {
    while let Some(name) = headers.keys().find(|name| name.as_str().contains('_')).cloned() {
        headers.remove(name);
    }
}

/// The notation of `Content-Length`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContentLengthForm {
    /// No `Content-Length`.
    None,
    /// One value without leading zeros.
    Canonical,
    /// Repeated, or with leading zeros.
    NonCanonical,
}

impl ContentLengthForm {
    /// Adds a value of `Content-Length`.
    pub fn add(&mut self, value: &HeaderValue) {
        *self = match (&self, value.as_bytes()) {
            (Self::None, [b'0'] | [b'1'..=b'9', ..]) if !value.as_bytes().contains(&b',') => Self::Canonical,
            _ => Self::NonCanonical,
        };
    }
}

/// Joins cookie headers: HTTP/2 allows several of them, HTTP/1.1 only one.
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
/// `X-Real-IP`, which servers behind nginx read. Only a trusted proxy may set it.
pub const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
/// `X-Request-Id`.
pub const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Whether a header describes the client, and is accepted from trusted proxies only.
#[inline]
pub fn is_forwarded_header(name: &HeaderName) -> bool {
    *name == header::FORWARDED
        || name.as_str().starts_with("x-forwarded-")
        || *name == X_REQUEST_ID
        || *name == X_REAL_IP
}

/// Returns the headers that `Connection` names.
pub fn connection_header_names(headers: &HeaderMap) -> Vec<HeaderName> {
    let mut named = Vec::new();
    for (name, value) in headers {
        // The most common values name no header that would be forwarded.
        if *name != CONNECTION || matches!(value.as_bytes(), b"keep-alive" | b"close") {
            continue;
        }
        let names = list_elements(value).filter_map(|token| HeaderName::from_bytes(token).ok());
        // A client must not remove these: they change the meaning of the request.
        let is_vital = |name: &HeaderName| {
            matches!(*name, HOST | CONTENT_LENGTH | header::AUTHORIZATION | header::COOKIE)
        };
        named.extend(names.filter(|name| !is_vital(name)));
    }
    named
}

/// Returns the elements of a comma-separated value.
pub fn list_elements(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Returns the name if the header is hop-by-hop.
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
    fn ambiguous_heads_are_rejected() {
        let host = ("host", "a");
        let long = "M".repeat(33);
        for (target, method, headers, status, message) in [
            ("/", "TRACE", &[host][..], 405, "CONNECT and TRACE are not allowed"),
            ("/", &long, &[host], 400, "method too long"),
            ("/", "POST", &[host, ("content-length", "4")], 413, "request body too large"),
            ("/", "GET", &[host, ("x", "a ")], 400, "header value with leading or trailing whitespace"),
            ("/", "GET", &[("host", "a b")], 400, "invalid Host header"),
            ("/", "GET", &[], 400, "missing Host header"),
            ("/", "GET", &[host, host], 400, "multiple Host headers"),
            ("a:80", "GET", &[host], 400, "missing path in the request line"),
            ("http://eve@a/", "GET", &[host], 400, "user name in the request line"),
            (
                "/",
                "GET",
                &[host, ("transfer-encoding", "gzip")],
                501,
                "unsupported transfer coding; only chunked is supported",
            ),
            ("/..", "GET", &[host], 400, "invalid path: `..` above the root"),
            ("*", "GET", &[host], 400, "invalid path: no leading slash"),
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
