//! Checks the head of a request before rules are evaluated.
//!
//! Servers interpret some requests differently: two `Host` headers, `/a/..;/b`, a trailing space in a value. [`check`] rejects
//! them and normalizes all others, so that rules see exactly what is forwarded. The gateway and `explain` call the same function.

mod fields;
mod parsed_request;

pub use fields::{FieldKinds, HeaderFields};
pub use parsed_request::ParsedRequest;

use crate::{
    matching::{PathError, normalize_path},
    model::{Connections, EscapedSlashes, Underscores},
};
use http::Version;
use std::{
    any::Any,
    borrow::Cow,
    fmt,
    net::{IpAddr, Ipv6Addr},
};
use tidegate_rule::{
    body::BodyValues,
    request::{ClientCertificate, RequestHead},
};

/// The head of an HTTP request, for rules.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestHead<'a> {
    request: &'a ParsedRequest,
    peer: IpAddr,
    client: Option<IpAddr>,
    listener: Option<&'a str>,
    certificate: Option<&'a ClientCertificate>,
    body: Option<&'a BodyValues>,
}

impl<'a> HttpRequestHead<'a> {
    /// The head of a request from `peer`. The client is the peer, or the address that a trusted proxy reports.
    pub fn new(request: &'a ParsedRequest, peer: IpAddr) -> Self {
        Self {
            request,
            peer: peer.to_canonical(),
            client: None,
            listener: None,
            certificate: None,
            body: None,
        }
    }

    /// The request.
    pub fn request(&self) -> &'a ParsedRequest {
        self.request
    }

    /// Sets the resolved client address.
    #[must_use]
    pub fn with_client(self, client: IpAddr) -> Self {
        Self { client: Some(client), ..self }
    }

    /// Sets the values of its body.
    #[must_use]
    pub fn with_body(self, body: Option<&'a BodyValues>) -> Self {
        Self { body, ..self }
    }

    /// Sets the verified certificate of the client.
    #[must_use]
    pub fn with_client_certificate(self, certificate: Option<&'a ClientCertificate>) -> Self {
        Self { certificate, ..self }
    }

    /// Sets the name of the listener.
    #[must_use]
    pub fn with_listener(self, listener: Option<&'a str>) -> Self {
        Self { listener, ..self }
    }
}

impl RequestHead for HttpRequestHead<'_> {
    fn method(&self) -> &str {
        self.request.method()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn query(&self) -> Option<&str> {
        self.request.query()
    }

    fn host(&self) -> Option<&str> {
        self.request.host()
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

    fn client_certificate(&self) -> Option<&ClientCertificate> {
        self.certificate
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.fields.get(name.as_bytes())
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        // Not `get_all`, whose items are bound to the name.
        self.request
            .fields
            .iter()
            .filter(|(known, _)| *known == name.as_bytes())
            .for_each(|(_, value)| each(value));
    }

    fn body(&self) -> Option<&BodyValues> {
        self.body
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
    /// The head is larger than `max-header-size`, or has too many fields.
    HeaderTooLarge,
    /// A version other than HTTP/1.0 and HTTP/1.1.
    Version,
}

impl HeadError {
    /// The status of the response.
    pub fn status(self) -> u16 {
        match self {
            Self::Malformed(_) | Self::Path(_) => 400,
            Self::Method => 405,
            Self::TooLarge => 413,
            Self::HeaderTooLarge => 431,
            Self::TransferCoding => 501,
            Self::Version => 505,
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
            Self::HeaderTooLarge => "header fields too large, or too many of them",
            Self::Version => "unsupported HTTP version; only 1.0 and 1.1 are supported without HTTP/2",
        }
    }

    /// Whether the connection must be closed, because the end of the request is ambiguous or unread. After `CONNECT` a client may
    /// have sent data of a tunnel.
    pub fn should_close(self) -> bool {
        match self {
            Self::Malformed(_)
            | Self::TransferCoding
            | Self::Method
            | Self::TooLarge
            | Self::HeaderTooLarge
            | Self::Version => true,
            Self::Path(_) => false,
        }
    }
}

impl fmt::Display for HeadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

impl std::error::Error for HeadError {}

/// The framing of the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body, or in HTTP/2 one of unknown length.
    None,
    /// A body of this length.
    Length(u64),
    /// The chunked transfer coding.
    Chunked,
}

/// The maximum length of a method.
pub const MAX_METHOD_LEN: usize = 32;

/// Rejects ambiguous requests, and normalizes all others: a normalized path in the request line, one `Host`, and no header
/// that is not forwarded.
///
/// `framing` is the [framing](ParsedRequest::framing) of the request. `is_trusted` returns whether the peer is a trusted proxy; it is only
/// called for requests with forwarded headers.
pub fn check(
    request: &mut ParsedRequest,
    framing: BodyFraming,
    limits: &HeadLimits,
    is_trusted: impl FnOnce() -> bool,
) -> Result<(), HeadError> {
    if matches!(request.method(), "CONNECT" | "TRACE") {
        return Err(HeadError::Method);
    }
    if request.method().len() > MAX_METHOD_LEN {
        return Err(HeadError::Malformed("method too long"));
    }
    if matches!(framing, BodyFraming::Length(length) if length > limits.body_size) {
        return Err(HeadError::TooLarge);
    }
    let (mut hosts, mut cookies, mut has_names, mut length) = (0, 0, false, ContentLength::default());
    for (name, value) in request.fields.iter() {
        // HTTP/1.1 values are trimmed. In HTTP/2 a value with a trailing space is malformed (RFC 9113, 8.2.1), and a server
        // that trims it would use another value than rules do.
        if let [b' ' | b'\t', ..] | [.., b' ' | b'\t'] = value {
            return Err(HeadError::Malformed("header value with leading or trailing whitespace"));
        }
        match name {
            b"host" => {
                hosts += 1;
                if !is_host(value) {
                    return Err(HeadError::Malformed("invalid Host header"));
                }
            }
            b"cookie" => cookies += 1,
            b"content-length" => length.add(value)?,
            b"connection" => has_names |= !matches!(value, b"keep-alive" | b"close"),
            _ => {}
        }
    }
    // Rules must not use headers that are not forwarded.
    if has_names {
        request.fields.remove_connection_options(|name| !is_hop_by_hop(name) && !is_vital(name));
    }
    if request.fields.may_contain(FieldKinds::FORWARDED) && !is_trusted() {
        request.fields.retain(|name, _| !is_forwarded_header(name));
    }
    match request.authority() {
        // Only `CONNECT` has a target without a path.
        Some(_) if request.target().is_empty() => {
            return Err(HeadError::Malformed("missing path in the request line"));
        }
        Some(authority) if authority.contains('@') => {
            return Err(HeadError::Malformed("user name in the request line"));
        }
        // The host in the request line takes precedence over `Host` (RFC 9112, 3.2.2).
        Some(authority) => {
            if !is_host(authority.as_bytes()) {
                return Err(HeadError::Malformed("invalid host in the request line"));
            }
            let host = authority.to_owned();
            request.fields.set(b"host", host.as_bytes());
            request.remove_authority();
        }
        None if hosts == 0 && request.version >= Version::HTTP_11 => {
            return Err(HeadError::Malformed("missing Host header"));
        }
        None => {}
    }
    if let (ContentLengthForm::NonCanonical, Some(length)) = (length.form, length.value) {
        request.fields.set(b"content-length", length.to_string().as_bytes());
    }
    if cookies > 1 {
        join_cookies(&mut request.fields);
    }
    if hosts > 1 {
        return Err(HeadError::Malformed("multiple Host headers"));
    }
    if request.fields.may_contain(FieldKinds::UNDERSCORE) && limits.underscores == Underscores::Drop {
        request.fields.retain(|name, _| !name.contains(&b'_'));
    }
    normalize(request, limits.escaped_slashes)
}

impl ParsedRequest {
    /// How the body ends (RFC 9112, 6.3). A wrong or ambiguous length is an error.
    #[inline]
    pub fn framing(&self) -> Result<BodyFraming, HeadError> {
        if !self.fields.may_contain(FieldKinds::FRAMING) {
            return Ok(BodyFraming::None);
        }
        let (mut codings, mut length) = (TransferCodings::None, ContentLength::default());
        for (name, value) in self.fields.iter() {
            match name {
                b"transfer-encoding" => codings.add(value),
                b"content-length" => length.add(value)?,
                _ => {}
            }
        }
        match (codings, length.value) {
            (TransferCodings::None, None) => Ok(BodyFraming::None),
            (TransferCodings::None, Some(length)) => Ok(BodyFraming::Length(length)),
            // Servers disagree on which one applies.
            (_, Some(_)) => Err(HeadError::Malformed("both Content-Length and Transfer-Encoding")),
            (_, None) if self.version < Version::HTTP_11 => {
                Err(HeadError::Malformed("Transfer-Encoding in an HTTP/1.0 request"))
            }
            (TransferCodings::Chunked, None) => Ok(BodyFraming::Chunked),
            (TransferCodings::Other, None) => Err(HeadError::TransferCoding),
            // The length of the body is unknown.
            (TransferCodings::NotChunkedLast, None) => {
                Err(HeadError::Malformed("the last transfer coding is not chunked"))
            }
        }
    }
}

/// Replaces the path by its normalized form, so that rules and servers use the same one.
fn normalize(request: &mut ParsedRequest, slashes: EscapedSlashes) -> Result<(), HeadError> {
    let path = request.path();
    let normal = normalize_path(path, slashes).map_err(HeadError::Path)?;
    if normal == "*" && request.method() != "OPTIONS" {
        return Err(HeadError::Path(PathError::Relative));
    }
    if let Cow::Owned(normal) = normal {
        let query = request.query().map(str::to_owned);
        request.set_target(&normal, query.as_deref());
    }
    Ok(())
}

/// The transfer codings of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransferCodings {
    /// No `Transfer-Encoding`.
    None,
    /// `chunked`.
    Chunked,
    /// Several codings, or `chunked` more than once; `chunked` is the last.
    Other,
    /// The last coding is not `chunked`.
    NotChunkedLast,
}

impl TransferCodings {
    /// Adds a value of `Transfer-Encoding`.
    pub fn add(&mut self, value: &[u8]) {
        let mut names = list_elements(value);
        let is_chunked = names.next_back().is_some_and(|last| last.eq_ignore_ascii_case(b"chunked"));
        *self = match (&self, names.next(), is_chunked) {
            (_, _, false) => Self::NotChunkedLast,
            (Self::None, None, true) => Self::Chunked,
            (_, _, true) => Self::Other,
        };
    }
}

/// The `Content-Length` of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ContentLength {
    /// The length.
    pub value: Option<u64>,
    /// The notation.
    pub form: ContentLengthForm,
}

/// The notation of `Content-Length`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentLengthForm {
    /// One value without leading zeros, or none.
    #[default]
    Canonical,
    /// Repeated, or with leading zeros.
    NonCanonical,
}

impl ContentLength {
    /// Adds a value. All values must be the same.
    pub fn add(&mut self, value: &[u8]) -> Result<(), HeadError> {
        for text in list_elements(value) {
            let length = parse_length(text).ok_or(HeadError::Malformed("invalid Content-Length"))?;
            let is_canonical = self.value.is_none() && (text == b"0" || !text.starts_with(b"0"));
            if self.value.is_some_and(|known| known != length) {
                return Err(HeadError::Malformed("several different values of Content-Length"));
            }
            self.value = Some(length);
            if !is_canonical || text.len() != value.len() {
                self.form = ContentLengthForm::NonCanonical;
            }
        }
        Ok(())
    }
}

/// Parses digits, without a sign.
fn parse_length(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    text.iter().try_fold(0_u64, |length, byte| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        length.checked_mul(10)?.checked_add(digit)
    })
}

/// Joins cookie headers: HTTP/2 allows several of them, HTTP/1.1 only one.
fn join_cookies(fields: &mut HeaderFields) {
    // An empty one would leave a space at the end.
    let cookies = fields.get_all(b"cookie").filter(|cookie| !cookie.is_empty());
    let joined = cookies.collect::<Vec<_>>().join(&b"; "[..]);
    fields.set(b"cookie", &joined);
}

/// Whether a value is a host with an optional port, which HTTP/2 can carry as `:authority`.
fn is_host(value: &[u8]) -> bool {
    let (name, port) = match value.iter().rposition(|byte| *byte == b']') {
        Some(end) => value.split_at(end + 1),
        None => value.split_at(value.iter().position(|byte| *byte == b':').unwrap_or(value.len())),
    };
    let is_port = match port {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let is_name = match name {
        [] => false,
        [b'[', address @ .., b']'] => {
            str::from_utf8(address).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
        }
        name => name.iter().copied().all(is_host_byte),
    };
    is_port && is_name
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b".-_~!$&'()*+,;=".contains(&byte)
}

/// Whether a header describes the client, and is accepted from trusted proxies only.
#[inline]
pub fn is_forwarded_header(name: &[u8]) -> bool {
    // `X-Real-IP` is read by servers behind nginx.
    name.starts_with(b"x-forwarded-") || matches!(name, b"forwarded" | b"x-request-id" | b"x-real-ip")
}

/// Whether `Connection` must not remove a header, because that would change the meaning of the message.
pub fn is_vital(name: &[u8]) -> bool {
    matches!(name, b"host" | b"content-length" | b"authorization" | b"cookie")
}

/// Returns the elements of a comma-separated value.
pub fn list_elements(value: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii)
}

/// Whether a header applies to one connection only.
#[inline]
pub fn is_hop_by_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection"
            | b"keep-alive"
            | b"proxy-connection"
            | b"te"
            | b"transfer-encoding"
            | b"upgrade"
            | b"proxy-authenticate"
            | b"proxy-authorization"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::uri::Authority;

    fn check_head(target: &str, method: &str, headers: &[(&str, &str)]) -> Result<ParsedRequest, HeadError> {
        let mut request = ParsedRequest::default();
        request.set_request_line(method, target, Version::HTTP_11);
        headers.iter().for_each(|(name, value)| request.fields.push(name.as_bytes(), value.as_bytes()));
        let limits = HeadLimits { body_size: 3, ..HeadLimits::from(&Connections::default()) };
        let framing = request.framing()?;
        check(&mut request, framing, &limits, || false).map(|()| request)
    }

    /// Otherwise a request to a server with HTTP/2 would have another host than the rules saw.
    #[test]
    fn every_host_is_an_authority() {
        let values =
            (0..=u8::MAX).flat_map(|byte| [vec![byte], vec![b'a', byte, b'b'], vec![b'[', b':', byte, b']']]);
        let hosts: Vec<_> =
            values.chain([b"a:80".to_vec(), b"[::1]:8080".to_vec()]).filter(|value| is_host(value)).collect();
        assert!(hosts.len() > 100);
        for host in hosts {
            assert!(Authority::try_from(&*host).is_ok(), "{}", host.escape_ascii());
        }
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
            ("/", "GET", &[("host", "")], 400, "invalid Host header"),
            ("/", "GET", &[("host", ":80")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "a:b")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "a:80:80")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "[::1]x")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "[::1")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "[a]")], 400, "invalid Host header"),
            ("/", "GET", &[("host", "a%2eb")], 400, "invalid Host header"),
            ("http://a:b/", "GET", &[host], 400, "invalid host in the request line"),
            ("/", "GET", &[], 400, "missing Host header"),
            ("/", "GET", &[host, host], 400, "multiple Host headers"),
            ("a:80", "GET", &[host], 400, "missing path in the request line"),
            ("http://eve@a/", "GET", &[host], 400, "user name in the request line"),
            (
                "/",
                "GET",
                &[host, ("transfer-encoding", "gzip")],
                400,
                "the last transfer coding is not chunked",
            ),
            (
                "/",
                "POST",
                &[host, ("transfer-encoding", "gzip, chunked")],
                501,
                "unsupported transfer coding; only chunked is supported",
            ),
            (
                "/",
                "POST",
                &[host, ("transfer-encoding", "chunked"), ("content-length", "1")],
                400,
                "both Content-Length and Transfer-Encoding",
            ),
            (
                "/",
                "POST",
                &[host, ("content-length", "1"), ("content-length", "2")],
                400,
                "several different values of Content-Length",
            ),
            ("/..", "GET", &[host], 400, "invalid path: `..` above the root"),
            ("*", "GET", &[host], 400, "invalid path: no leading slash"),
        ] {
            let error = check_head(target, method, headers).unwrap_err();
            assert_eq!((error.status(), error.message()), (status, message));
        }
    }

    /// The parser of the gateway returns these.
    #[test]
    fn parser_errors_have_status_and_message() {
        for (error, status, message) in [
            (HeadError::HeaderTooLarge, 431, "header fields too large, or too many of them"),
            (
                HeadError::Version,
                505,
                "unsupported HTTP version; only 1.0 and 1.1 are supported without HTTP/2",
            ),
        ] {
            assert_eq!((error.status(), error.to_string().as_str()), (status, message));
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
        let request = check_head("http://b/x/../y?q", "GET", &headers).unwrap();
        assert_eq!(request.target(), "/y?q");
        let values = |name: &str| request.fields.get_all(name.as_bytes()).collect::<Vec<_>>();
        assert_eq!(values("host"), [b"b"]);
        assert_eq!(values("cookie"), [b"a=1; b=2"]);
        assert!(["x-user", "x_user", "x-forwarded-for"].iter().all(|name| values(name).is_empty()));
    }
}
