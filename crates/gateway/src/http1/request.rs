//! The head of a request.

use super::head::{empty_lines, field_space, head_error, keeps_alive, push_fields, write_fields};
use http::{Method, Version, uri::PathAndQuery};
use httparse::{Request, Status};
use tidegate_policy::head::{HeadError, MAX_METHOD_LEN, ParsedRequest};

/// Parses the head of a request. `input` is a complete head, which a [`HeadScanner`](super::HeadScanner) has found.
#[inline]
pub fn parse_request(input: &[u8], request: &mut ParsedRequest) -> Result<(), HeadError> {
    let mut space = field_space();
    let mut parsed = Request::new(&mut []);
    match parsed.parse_with_uninit_headers(input, &mut space) {
        Ok(Status::Complete(length)) if length == input.len() => {}
        Ok(_) => return Err(HeadError::Malformed("invalid request head")),
        Err(error) => return Err(head_error(error)),
    }
    let (Some(method), Some(target)) = (parsed.method, parsed.path) else {
        return Err(HeadError::Malformed("invalid request line"));
    };
    if target.len() > MAX_TARGET_LEN {
        return Err(HeadError::HeaderTooLarge);
    }
    if !is_valid_target(target) {
        return Err(HeadError::Malformed("invalid character in the request target"));
    }
    if !has_valid_scheme(target) {
        return Err(HeadError::Malformed("invalid scheme or host in the request target"));
    }
    let version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    request.set_request_line(method, target, version);
    push_fields(&mut request.fields, parsed.headers, input.len());
    if version == Version::HTTP_10 {
        // A client of this version may not know how its body ends (RFC 9112, 6.1).
        request.framing()?;
    }
    // It is required with an absolute target too (RFC 9112, 3.2). For other targets the check of the head requires it.
    if !target.starts_with('/') && version == Version::HTTP_11 && !request.fields.contains(b"host") {
        return Err(HeadError::Malformed("missing Host header"));
    }
    Ok(())
}

/// Reads the request line of a head that is invalid, for the access log: the valid ones of its three parts. The others are `-`, empty and
/// HTTP/1.1.
pub fn parse_request_line(input: &[u8], request: &mut ParsedRequest) {
    let end = memchr::memchr2(b'\r', b'\n', input).unwrap_or(input.len());
    let mut parts = input[..end].split(|byte| *byte == b' ').map(str::from_utf8);
    let mut next = || parts.next().and_then(Result::ok);
    let method = next()
        .filter(|method| method.len() <= MAX_METHOD_LEN && Method::from_bytes(method.as_bytes()).is_ok());
    let is_valid = |target: &&str| {
        target.len() <= MAX_TARGET_LEN
            && (target.starts_with('/') || target.contains("://"))
            && is_valid_target(target)
            && has_valid_scheme(target)
    };
    let target = next().filter(is_valid);
    let version = if next() == Some("HTTP/1.0") { Version::HTTP_10 } else { Version::HTTP_11 };
    request.set_request_line(method.unwrap_or("-"), target.unwrap_or_default(), version);
}

/// The number of bytes before the head of a request: empty lines, which are ignored (RFC 9112, 2.2).
#[inline]
pub fn leading_empty_lines(input: &[u8]) -> usize {
    if input.first() == Some(&b'\r') { empty_lines(input) } else { 0 }
}

/// Whether the client keeps the connection open after this request.
#[inline]
pub fn request_keeps_alive(request: &ParsedRequest) -> bool {
    keeps_alive(request.version, &request.fields)
}

/// Whether all characters may occur in a request target. Some that RFC 3986 does not allow are accepted, because common clients
/// send them unescaped; `http::Uri`, which carries the target to a server with HTTP/2, accepts them too.
fn is_valid_target(target: &str) -> bool {
    target.bytes().all(|byte| TARGET_CHARACTERS[byte as usize]) || is_rare_target(target)
}

/// Whether a target with a character that `http::Uri` accepts only in the path or only in the query is valid.
#[cold]
fn is_rare_target(target: &str) -> bool {
    let is_character = |byte: u8| TARGET_CHARACTERS[byte as usize] || matches!(byte, b'"' | b'^' | b'`');
    target.starts_with('/') && target.bytes().all(is_character) && PathAndQuery::try_from(target).is_ok()
}

/// Whether a target in the absolute form has a scheme and a host (RFC 9110, 4.2.1).
fn has_valid_scheme(target: &str) -> bool {
    if target.starts_with('/') {
        return true;
    }
    match target.split_once("://") {
        Some((scheme, rest)) => {
            scheme.starts_with(|first: char| first.is_ascii_alphabetic())
                && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
                && !matches!(rest.bytes().next(), None | Some(b'/' | b'?' | b':'))
        }
        None => true,
    }
}

/// The maximum length of a URI in `http::Uri`.
const MAX_TARGET_LEN: usize = u16::MAX as usize - 1;

/// `#` begins a fragment, which is not a part of a request target.
const TARGET_CHARACTERS: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0x21;
    while byte < 256 {
        allowed[byte] = !matches!(byte as u8, b'"' | b'#' | b'<' | b'>' | b'^' | b'`' | 0x7f);
        byte += 1;
    }
    allowed
};

/// Writes the head of a request, for HTTP/1.1. `extra` are further fields with their line ends.
#[inline]
pub fn write_request(out: &mut Vec<u8>, request: &ParsedRequest, extra: &[u8]) {
    let target = request.target();
    out.reserve(request.method().len() + target.len() + request.fields.wire_len() + extra.len() + 16);
    out.extend_from_slice(request.method().as_bytes());
    out.push(b' ');
    out.extend_from_slice(if target.is_empty() { b"/" } else { target.as_bytes() });
    out.extend_from_slice(b" HTTP/1.1\r\n");
    write_fields(out, &request.fields);
    out.extend_from_slice(extra);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<ParsedRequest, HeadError> {
        let mut request = ParsedRequest::default();
        parse_request(head.as_bytes(), &mut request).map(|()| request)
    }

    #[test]
    fn written_request_is_parsed_request_with_lower_case_names() {
        let request = parse("POST /a?b HTTP/1.1\r\nHost: a\r\nX-A:\t 1 2 \r\nx-a:\r\n\r\n").unwrap();
        let mut out = Vec::new();
        write_request(&mut out, &request, b"x-b: 3\r\n");
        let text = "POST /a?b HTTP/1.1\r\nhost: a\r\nx-a: 1 2\r\nx-a: \r\nx-b: 3\r\n\r\n";
        assert_eq!(str::from_utf8(&out).unwrap(), text);
    }

    #[test]
    fn invalid_heads_have_a_status() {
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(101));
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(MAX_TARGET_LEN));
        for (head, status) in [
            ("GET / HTTP/2.0\r\n\r\n", 505),
            ("GET / HTTP/1.2\r\n\r\n", 505),
            ("GET /\r\n\r\n", 400),
            ("GET  / HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1 \r\n\r\n", 400),
            (" GET / HTTP/1.1\r\n\r\n", 400),
            ("G(T / HTTP/1.1\r\n\r\n", 400),
            ("GET /a\u{7f} HTTP/1.1\r\n\r\n", 400),
            ("GET /a#b HTTP/1.1\r\n\r\n", 400),
            ("GET /a<b HTTP/1.1\r\n\r\n", 400),
            ("GET http://a/ HTTP/1.1\r\n\r\n", 400),
            ("GET http:///a HTTP/1.1\r\n\r\n", 400),
            ("GET http://?a HTTP/1.1\r\n\r\n", 400),
            ("GET http://:80/a HTTP/1.1\r\n\r\n", 400),
            ("GET ://b/a HTTP/1.1\r\n\r\n", 400),
            ("GET a/b://c/d HTTP/1.1\r\n\r\n", 400),
            ("GET a?b://c/d HTTP/1.1\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\na : b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\na\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\n: b\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\na: b\r\n c\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\na: b\rc\r\n\r\n", 400),
            ("GET / HTTP/1.1\r\na: b\0\r\n\r\n", 400),
            (&many, 431),
            (&long, 431),
        ] {
            assert_eq!(parse(head).map_err(HeadError::status), Err(status), "{head:?}");
        }
        for head in [
            "GET /http:///a?b://c HTTP/1.1\r\n\r\n",
            "GET h+2.x-y://a HTTP/1.1\r\nhost: a\r\n\r\n",
            "GET /\u{e4}{\"a\"}?{a} HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.0\r\na: \u{e4}\r\n\r\n",
        ] {
            assert!(parse(head).is_ok(), "{head:?}");
        }
    }

    /// Otherwise a server with HTTP/2 would receive another target than the rules saw.
    #[test]
    fn every_target_is_a_uri() {
        for byte in 0..=u8::MAX {
            for target in [[b"/a", &[byte][..], b"b"].concat(), [b"/a?", &[byte][..], b"b"].concat()] {
                let head = [b"GET ", &*target, b" HTTP/1.1\r\n\r\n"].concat();
                let is_valid = parse_request(&head, &mut ParsedRequest::default()).is_ok();
                let is_uri = PathAndQuery::try_from(&*target).is_ok();
                assert!(is_uri || !is_valid, "{}", target.escape_ascii());
            }
        }
        for len in [MAX_TARGET_LEN, MAX_TARGET_LEN + 1] {
            let target = format!("/{}", "a".repeat(len - 1));
            let head = format!("GET {target} HTTP/1.1\r\n\r\n");
            let is_valid = parse_request(head.as_bytes(), &mut ParsedRequest::default()).is_ok();
            assert_eq!(is_valid, PathAndQuery::try_from(&*target).is_ok(), "{len}");
        }
    }
}
