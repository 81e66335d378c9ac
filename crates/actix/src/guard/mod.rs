//! Breakers, adaptive limits and throttles that follow errors, in front of a service.
//!
//! ```text
//!   request ──▶ guard ──pass──▶ inner ──▶ head ──▶ body
//!                 │                         └─ or ──┴──▶ report
//!                 └──rejection──▶ 503, Retry-After
//! ```

mod service;
mod transform;

pub use service::GuardService;
pub use transform::GuardMiddleware;
