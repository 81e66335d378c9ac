//! TLS of listeners and of connections to servers.

mod certificate;
mod client_name;
mod roots;

pub use certificate::Certificate;
pub use roots::Roots;

/// The ALPN protocol of HTTP/2.
pub const ALPN_HTTP2: &[u8] = b"h2";
/// The ALPN protocol of HTTP/1.1.
pub const ALPN_HTTP1: &[u8] = b"http/1.1";
