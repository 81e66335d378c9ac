//! A gate in front of a service.

mod answer;
mod future;
mod headers;
mod layer;
mod service;

pub use future::LimitFuture;
pub use layer::LimitLayer;
pub use service::Limit;
