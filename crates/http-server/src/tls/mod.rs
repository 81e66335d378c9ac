//! TLS, in and out.

mod certificate;
mod client_name;
mod roots;

pub use certificate::Certificate;
pub use roots::Roots;

/// What is spoken inside of TLS, by the names that both sides agree on.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// HTTP/1.1 inside of TLS.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
