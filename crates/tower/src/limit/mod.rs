//! A layer that limits requests by a gate.

mod future;
mod headers;
mod layer;
mod rejection;
mod service;

pub use future::LimitFuture;
#[cfg(feature = "policy")]
pub(crate) use headers::RateLimitHeaders;
pub use layer::LimitLayer;
pub use service::LimitService;
