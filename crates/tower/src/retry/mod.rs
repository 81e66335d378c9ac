//! A client layer that retries requests, bounds their time, and hedges slow ones.
//!
//! ```text
//!   request ──▶ may be sent twice? ──▶ Retrier ──attempt──▶ clone of inner ──▶ response
//!                     │ no                 ▲                                      │ 429, 502, 503, 504, error
//!                     └──▶ sent once       └──────────── backoff ◀────────────────┘
//! ```

mod classify;
mod layer;

pub use classify::{CloneRetries, HttpRetries, RetryClassifier, RetryRequest};
pub use layer::{RetryFuture, RetryLayer, RetryService};
