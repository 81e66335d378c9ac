//! TLS, in and out.

mod certificate;
mod named;
mod roots;

pub(crate) use certificate::Certificate;
pub use roots::Roots;

/// What is spoken inside of TLS, by the names that both sides agree on.
pub(crate) const HTTP2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";
