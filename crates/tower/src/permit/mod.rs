//! What all layers have in common that let a request in or not, and hold something while it is served.

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
