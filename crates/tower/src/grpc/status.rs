//! A gRPC status as response headers: the code, the message and the retry time.
//!
//! Encoded manually, so that a layer does not depend on a gRPC library.

use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::{fmt::Write as _, time::Duration};

/// A gRPC status code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrpcCode(pub(crate) u8);

const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_STATUS_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");

impl GrpcCode {
    const UNKNOWN: Self = Self(2);
    const INVALID_ARGUMENT: Self = Self(3);
    const PERMISSION_DENIED: Self = Self(7);
    const RESOURCE_EXHAUSTED: Self = Self(8);
    const UNAVAILABLE: Self = Self(14);
    const UNAUTHENTICATED: Self = Self(16);

    /// Returns the gRPC code for the HTTP status of a rejection.
    pub(crate) fn from_http_status(status: u16) -> Self {
        match status {
            400 => Self::INVALID_ARGUMENT,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            429 => Self::RESOURCE_EXHAUSTED,
            502..=504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }
}

/// Whether a request with these headers is a gRPC call.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    kind.and_then(|kind| kind.strip_prefix(b"application/grpc"))
        .is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Writes the headers of a trailers-only response; its HTTP status is 200.
pub(crate) fn write_status_headers(
    headers: &mut HeaderMap,
    code: GrpcCode,
    message: &str,
    retry: Option<Duration>,
) {
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert(GRPC_STATUS, HeaderValue::from(u16::from(code.0)));
    if let Ok(message) = HeaderValue::from_str(&percent_encode(message)) {
        headers.insert(GRPC_MESSAGE, message);
    }
    if let Some(retry) = retry
        && let Ok(details) = HeaderValue::from_str(&encode_base64(&encode_details(code, message, retry)))
    {
        headers.insert(GRPC_STATUS_DETAILS, details);
    }
}

/// Escapes the characters that a header value cannot contain.
fn percent_encode(message: &str) -> String {
    let mut escaped = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => escaped.push(byte.into()),
            // Writing to a string does not fail.
            _ => _ = write!(escaped, "%{byte:02X}"),
        }
    }
    escaped
}

/// Encodes a `google.rpc.Status` with a `google.rpc.RetryInfo` as protobuf.
fn encode_details(code: GrpcCode, message: &str, retry: Duration) -> Vec<u8> {
    let mut delay = Vec::new();
    encode_varint_field(&mut delay, 1, retry.as_secs());
    encode_varint_field(&mut delay, 2, retry.subsec_nanos().into());
    let mut info = Vec::new();
    encode_bytes_field(&mut info, 1, &delay);
    let mut any = Vec::new();
    encode_bytes_field(&mut any, 1, b"type.googleapis.com/google.rpc.RetryInfo");
    encode_bytes_field(&mut any, 2, &info);
    let mut status = Vec::new();
    encode_varint_field(&mut status, 1, code.0.into());
    encode_bytes_field(&mut status, 2, message.as_bytes());
    encode_bytes_field(&mut status, 3, &any);
    status
}

fn encode_varint_field(out: &mut Vec<u8>, field: u8, value: u64) {
    if value != 0 {
        out.push(field << 3);
        encode_varint(out, value);
    }
}

fn encode_bytes_field(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    encode_varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

fn encode_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Encodes base64 without padding, which gRPC recommends for binary headers.
fn encode_base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |place: usize| u32::from(three.get(place).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..=three.len() {
            text.push(ALPHABET[(bits >> (18 - 6 * place) & 63) as usize].into());
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_4648() {
        for (bytes, text) in [("", ""), ("f", "Zg"), ("fo", "Zm8"), ("foo", "Zm9v"), ("foob", "Zm9vYg")] {
            assert_eq!(encode_base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn grpc_content_type_is_detected() {
        let is_grpc_type = |kind: &'static str| {
            is_grpc(&HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        for kind in ["application/grpc", "application/grpc+proto", "application/grpc;charset=utf-8"] {
            assert!(is_grpc_type(kind), "{kind}");
        }
        for kind in ["application/grpc-web", "application/json", "", "text/application/grpc"] {
            assert!(!is_grpc_type(kind), "{kind}");
        }
        assert!(!is_grpc(&HeaderMap::new()));
    }

    /// tonic decodes the encoded headers.
    #[cfg(feature = "tonic")]
    #[test]
    fn tonic_decodes_status_headers() {
        use tonic_types::StatusExt as _;
        let mut headers = HeaderMap::new();
        let retry = Duration::new(300, 5_000);
        let message = "100 % zu viel: später, \u{1F600}\n";
        write_status_headers(&mut headers, GrpcCode::RESOURCE_EXHAUSTED, message, Some(retry));
        let status = tonic::Status::from_header_map(&headers).unwrap();
        assert_eq!((status.code(), status.message()), (tonic::Code::ResourceExhausted, message));
        assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(retry));
    }
}
