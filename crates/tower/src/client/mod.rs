//! A client layer that honours `Retry-After` and limits its own calls.
//!
//! ```text
//!   call ──▶ backoff? ──▶ rule ──▶ inner ──▶ response
//!               ▲                                │ 429, 503: Retry-After
//!               └─────────── block ◀─────────────┘ any: exhausted RateLimit
//! ```

mod backoffs;
mod error;
mod layer;
mod message;
mod retry_after;
mod service;

pub use error::{RetryAfterError, ServerBackoff};
pub use layer::RetryAfterLayer;
pub use message::{ClientRequest, ClientResponse};
pub(crate) use retry_after::parse_wait;
pub use service::{RetryAfterFuture, RetryAfterService};
