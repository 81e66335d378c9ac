//! Breakers, adaptive limits and throttles that follow errors, in front of a service.
//!
//! ```text
//!   call ──▶ guard ──pass──▶ inner ──▶ head ──▶ body
//!              │                         └─ or ──┴──▶ report
//!              └──rejection──▶ 503, Retry-After
//! ```

mod layer;
mod service;

pub use layer::GuardLayer;
pub use service::Guarded;
