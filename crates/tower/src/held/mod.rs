//! What all layers have in common that let a request in or not, and hold something while it is served.

mod body;
mod future;
mod terms;
mod wire;

pub use body::HeldBody;
pub use future::HeldFuture;
#[cfg(feature = "reqwest")]
pub(crate) use terms::Held;
pub(crate) use terms::refuse;
pub(crate) use wire::Wire;
