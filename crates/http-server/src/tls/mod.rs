//! TLS, in and out.

mod certificate;
mod named;
mod roots;

pub use certificate::Certificate;
pub use roots::Roots;

/// What is spoken inside of TLS, by the names that both sides agree on.
pub const HTTP2: &[u8] = b"h2";
/// HTTP/1.1 inside of TLS.
pub const HTTP1: &[u8] = b"http/1.1";
