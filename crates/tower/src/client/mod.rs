//! The client side: calls that keep a limit of their own, and do as servers say.
//!
//! ```text
//!   call ──▶ told to wait? ──▶ rule ──▶ inner ──▶ answer
//!               ▲                                   │ 429, 503: Retry-After
//!               └────────── until then ◀────────────┘ any: RateLimit with nothing left
//! ```

mod backoffs;
mod error;
mod layer;
mod message;
mod retry_after;
mod service;

pub use error::RetryAfterError;
pub use layer::RetryAfterLayer;
pub use message::{ClientRequest, ClientResponse};
pub use service::{RetryAfterFuture, RetryAfterService};
