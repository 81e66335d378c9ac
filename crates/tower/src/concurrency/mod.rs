//! So many requests at once, until the bodies of their answers are sent.

mod future;
mod layer;
mod service;

pub use future::ConcurrencyFuture;
pub use layer::ConcurrencyLayer;
pub use service::Concurrency;
