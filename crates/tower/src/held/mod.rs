//! What all layers have in common that let a request in or not, and hold something while it is served.

mod body;
mod future;
mod terms;
mod wire;

pub use body::HeldBody;
pub use future::HeldFuture;
pub(crate) use terms::{Held, Terms};
pub use terms::{Until, called, served};
pub(crate) use wire::Wire;
