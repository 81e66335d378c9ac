//! Rules in front of a service.
//!
//! ```text
//!   request ──▶ gate ──▶ admitted ──▶ inner ──▶ head: settle, headers ──▶ body: slots, until its end
//!                 └────▶ refused  ──▶ answer
//! ```

mod headers;
mod service;
mod transform;

pub use service::LimitTransformService;
pub use transform::LimitMiddleware;
