//! Middleware that limits requests by a gate.
//!
//! ```text
//!   request ──▶ gate ──▶ admitted ──▶ inner ──▶ head: settle, headers ──▶ body: slots, until its end
//!                 └────▶ denied   ──▶ rejection
//! ```

mod headers;
mod service;
mod transform;

pub use service::LimitTransformService;
pub use transform::LimitMiddleware;
