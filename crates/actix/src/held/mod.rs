//! What all middleware has in common that lets a request in or not, and holds something while it is served.

mod body;
mod future;
mod terms;

pub use body::HeldBody;
pub use future::HeldFuture;
pub(crate) use future::{Admission, Said};
pub(crate) use terms::{Entered, enter, reply_to, respond, say};
