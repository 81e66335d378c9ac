//! The client side: calls that keep a limit of their own, and do as servers say.
//!
//! ```text
//!   call ──▶ told to wait? ──▶ rule ──▶ inner ──▶ answer
//!               ▲                                   │ 429, 503: Retry-After
//!               └────────── until then ◀────────────┘ any: RateLimit with nothing left
//! ```

mod advice;
mod error;
mod hosts;
mod layer;
mod service;
mod wire;

pub use error::PoliteError;
pub use layer::PoliteLayer;
pub use service::{Polite, PoliteFuture};
pub use wire::{Inbound, Outbound};
