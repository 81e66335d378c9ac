//! So many requests at once, until the bodies of their answers are sent.

mod service;
mod transform;

pub use service::ConcurrencyService;
pub use transform::ConcurrencyMiddleware;
