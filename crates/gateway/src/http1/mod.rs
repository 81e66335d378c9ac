//! HTTP/1.1 without IO: parses and writes heads, and decodes and encodes bodies.
//!
//! ```text
//!   bytes ──▶ HeadScanner ──▶ parse_request ──▶ ParsedRequest ──▶ write_request ──▶ bytes
//!         ──▶ BodyDecoder ──▶ data, trailers ──▶ write_chunk_start, write_last_chunk ──▶ bytes
//!
//!   between them: strip_request_fields, prepare_response, frame_response, strip_request_trailers
//! ```
//!
//! The parser accepts what RFC 9112 allows, and some characters of targets that clients send unescaped. A line ends with CR LF, a
//! field name is followed by a colon, and the end of a body is unambiguous. `httparse` checks the characters of heads.
//! docs/http1.md lists what is rejected, with its status.

mod body;
mod chunked;
mod forward;
mod head;
mod request;
mod response;

pub use body::{BodyDecoder, BodyError, BodyStep};
pub use chunked::{CHUNKED_FIELD, write_chunk_end, write_chunk_start, write_last_chunk};
pub use forward::{
    Upgrade, frame_response, prepare_response, prepare_switch, strip_request_fields, strip_request_trailers,
    strip_response_trailers,
};
pub use head::HeadScanner;
pub use request::{
    leading_empty_lines, parse_request, parse_request_line, request_keeps_alive, write_request,
};
pub use response::{ParsedResponse, ResponseFraming, parse_response, write_response};

/// The maximum number of fields of a head or a trailer section.
pub const MAX_FIELDS: usize = 100;
