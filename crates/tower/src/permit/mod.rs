//! Shared parts of the layers that admit or reject a request and hold a permit while it is served.

mod body;
mod future;
mod protocol;
mod release;

pub use body::PermitBody;
pub use future::PermitFuture;
pub(crate) use protocol::ResponseProtocol;
#[cfg(feature = "reqwest")]
pub(crate) use release::RequestPermit;
pub(crate) use release::reject;
