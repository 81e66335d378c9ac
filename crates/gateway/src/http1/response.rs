//! The head of a response.

use super::head::{field_space, head_error, keeps_alive, push_fields, write_fields};
use http::{StatusCode, Version, response};
use httparse::{ParserConfig, Response, Status};
use tidegate_policy::head::{ContentLength, FieldKinds, HeadError, HeaderFields, TransferCodings};
use tidegate_rule::request::ResponseHead;

/// The head of a response. Clearing it keeps its memory for the next response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedResponse {
    /// The status.
    pub status: StatusCode,
    /// The header fields.
    pub fields: HeaderFields,
    version: Version,
    /// The reason phrase of the server; empty for the usual one.
    reason: Vec<u8>,
}

/// How the body of a response ends (RFC 9112, 6.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseFraming {
    /// No body.
    None,
    /// A body of this length.
    Length(u64),
    /// The chunked transfer coding.
    Chunked,
    /// The body ends when the connection is closed.
    UntilClose,
}

impl ParsedResponse {
    /// Replaces the status, and removes all fields.
    pub fn reset(&mut self, status: StatusCode) {
        self.status = status;
        self.version = Version::HTTP_11;
        self.fields.clear();
        self.reason.clear();
    }

    /// Replaces it by another head, and keeps the memory.
    pub fn copy_from(&mut self, other: &Self) {
        self.status = other.status;
        self.version = other.version;
        self.fields.copy_from(&other.fields);
        self.reason.clone_from(&other.reason);
    }

    /// The HTTP version of the server.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether the server keeps the connection open after this response.
    #[inline]
    pub fn keeps_alive(&self) -> bool {
        keeps_alive(self.version, &self.fields)
    }

    /// Whether the response to a request with `method` never has a body.
    #[inline]
    pub(super) fn has_no_body(&self, method: &str) -> bool {
        method == "HEAD"
            || self.status.is_informational()
            || matches!(self.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
    }

    /// How the body of this response to a request with `method` ends. A wrong or ambiguous length is an error.
    pub fn framing(&self, method: &str) -> Result<ResponseFraming, HeadError> {
        let (mut codings, mut length) = (TransferCodings::None, ContentLength::default());
        if self.fields.may_contain(FieldKinds::FRAMING) {
            for (name, value) in self.fields.iter() {
                match name {
                    b"transfer-encoding" => codings.add(value),
                    b"content-length" => length.add(value)?,
                    _ => {}
                }
            }
        }
        if self.has_no_body(method) {
            return Ok(ResponseFraming::None);
        }
        match (codings, length.value) {
            (TransferCodings::None, None) => Ok(ResponseFraming::UntilClose),
            (TransferCodings::None, Some(length)) => Ok(ResponseFraming::Length(length)),
            (TransferCodings::Chunked, _) if self.version == Version::HTTP_11 => Ok(ResponseFraming::Chunked),
            _ => Err(HeadError::TransferCoding),
        }
    }

    /// The fields in another form, for HTTP/2.
    pub fn to_parts(&self) -> response::Parts {
        let mut parts = response::Response::new(()).into_parts().0;
        parts.status = self.status;
        parts.headers = self.fields.to_map();
        parts
    }
}

impl From<&response::Parts> for ParsedResponse {
    fn from(parts: &response::Parts) -> Self {
        Self {
            status: parts.status,
            fields: HeaderFields::from(&parts.headers),
            version: Version::HTTP_11,
            reason: Vec::new(),
        }
    }
}

impl ResponseHead for ParsedResponse {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.fields.get(name.as_bytes())
    }
}

/// Parses the head of a response. `input` is a complete head, which a [`HeadScanner`](super::HeadScanner) has found.
#[inline]
pub fn parse_response(input: &[u8], response: &mut ParsedResponse) -> Result<(), HeadError> {
    // `httparse` skips empty lines. Only a server may ignore them (RFC 9112, 2.2).
    if !input.starts_with(b"HTTP/") {
        return Err(HeadError::Malformed("invalid status line"));
    }
    let mut space = field_space();
    let mut parsed = Response::new(&mut []);
    match ParserConfig::default().parse_response_with_uninit_headers(&mut parsed, input, &mut space) {
        Ok(Status::Complete(length)) if length == input.len() => {}
        Ok(_) => return Err(HeadError::Malformed("invalid response head")),
        Err(error) => return Err(head_error(error)),
    }
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    let Some(status) = status.filter(|status| status.as_u16() < 600) else {
        return Err(HeadError::Malformed("invalid status"));
    };
    response.reset(status);
    response.version = if parsed.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
    let reason = parsed.reason.unwrap_or_default();
    if Some(reason) != status.canonical_reason() {
        response.reason.extend_from_slice(reason.as_bytes());
    }
    push_fields(&mut response.fields, parsed.headers, input.len());
    Ok(())
}

/// Writes the head of a response to a client of this version, HTTP/1.0 or HTTP/1.1. `extra` are further fields with their line ends.
#[inline]
pub fn write_response(out: &mut Vec<u8>, version: Version, response: &ParsedResponse, extra: &[&[u8]]) {
    out.reserve(response.fields.wire_len() + 192);
    out.extend_from_slice(if version == Version::HTTP_10 { b"HTTP/1.0 " } else { b"HTTP/1.1 " });
    out.extend_from_slice(response.status.as_str().as_bytes());
    out.push(b' ');
    match response.reason.is_empty() {
        true => out.extend_from_slice(response.status.canonical_reason().unwrap_or_default().as_bytes()),
        false => out.extend_from_slice(&response.reason),
    }
    out.extend_from_slice(b"\r\n");
    write_fields(out, &response.fields);
    extra.iter().for_each(|fields| out.extend_from_slice(fields));
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(head: &str) -> Result<ParsedResponse, HeadError> {
        let mut response = ParsedResponse::default();
        parse_response(head.as_bytes(), &mut response).map(|()| response)
    }

    #[test]
    fn written_response_is_parsed_response() {
        for (head, written) in [
            ("HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", "HTTP/1.1 200 OK\r\nserver: x\r\n\r\n"),
            ("HTTP/1.0 200 Fine\r\n\r\n", "HTTP/1.1 200 Fine\r\n\r\n"),
            ("HTTP/1.1 404 \r\n\r\n", "HTTP/1.1 404 Not Found\r\n\r\n"),
            ("HTTP/1.1 599\r\n\r\n", "HTTP/1.1 599 \r\n\r\n"),
        ] {
            let mut out = Vec::new();
            write_response(&mut out, Version::HTTP_11, &parse(head).unwrap(), &[]);
            assert_eq!(str::from_utf8(&out).unwrap(), written);
        }
    }

    #[test]
    fn framing_follows_rfc_9112() {
        use ResponseFraming::{Chunked, Length, None, UntilClose};
        for (method, head, framing) in [
            ("GET", "200 OK\r\n", Some(UntilClose)),
            ("GET", "200 OK\r\ncontent-length: 3\r\n", Some(Length(3))),
            ("GET", "200 OK\r\ncontent-length: 3, 3\r\n", Some(Length(3))),
            ("GET", "200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n", Option::None),
            ("GET", "200 OK\r\ncontent-length: x\r\n", Option::None),
            ("GET", "200 OK\r\ntransfer-encoding: Chunked\r\n", Some(Chunked)),
            ("GET", "200 OK\r\ntransfer-encoding: gzip, chunked\r\n", Option::None),
            ("GET", "200 OK\r\ntransfer-encoding: gzip\r\n", Option::None),
            ("HEAD", "200 OK\r\ncontent-length: 3\r\n", Some(None)),
            ("GET", "204 No Content\r\ncontent-length: 3\r\n", Some(None)),
            ("GET", "304 Not Modified\r\ncontent-length: 3\r\n", Some(None)),
            ("GET", "100 Continue\r\n", Some(None)),
        ] {
            let response = parse(&format!("HTTP/1.1 {head}\r\n")).unwrap();
            assert_eq!(response.framing(method).ok(), framing, "{method} {head}");
        }
        let old = parse("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
        assert!(old.framing("GET").is_err());
    }

    #[test]
    fn invalid_heads_are_rejected() {
        for head in [
            "HTTP/2.0 200 OK\r\n\r\n",
            "HTTP/1.1 99 OK\r\n\r\n",
            "HTTP/1.1 600 OK\r\n\r\n",
            "HTTP/1.1 2000 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\na : b\r\n\r\n",
            "HTTP/1.1 200 OK\r\na: b\r\n c\r\n\r\n",
            "nonsense\r\n\r\n",
            "\r\nHTTP/1.1 200 OK\r\n\r\n",
        ] {
            assert!(parse(head).is_err(), "{head:?}");
        }
    }
}
