//! Breakers, adaptive limits and throttles that follow errors, in front of a service.
//!
//! ```text
//!   call ──▶ guard ──pass──▶ inner ──▶ head ──▶ body
//!              │                         └─ or ──┴──▶ report
//!              └──rejection──▶ 503, Retry-After
//! ```

mod layer;
#[cfg(feature = "reqwest")]
mod reqwest;
mod service;

pub use layer::GuardLayer;
#[cfg(feature = "reqwest")]
pub use reqwest::GuardedCall;
pub use service::Guarded;
