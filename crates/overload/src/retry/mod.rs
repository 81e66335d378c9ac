//! Retries, time limits and hedges for calls.
//!
//! ```text
//!   call ──▶ attempt ──▶ result ──final──▶ returned
//!              ▲           │ retry: within the maximum, the budget and the time limit?
//!              └─ backoff ◀┘
//!
//!   attempt ──still running after the hedge delay──▶ second attempt; the first good result is used
//! ```
//!
//! The waits are random parts of a backoff that doubles ("full jitter"), so that clients that failed together do not retry
//! together. The [`RetryBudget`] bounds retries and hedges to a share of all calls: at 100 % failures, a client that retries
//! twice would otherwise triple the load.
//!
//! Attempts run in the task of the caller; nothing is spawned. A cancelled attempt is dropped, so that a
//! [`CallPermit`](crate::CallPermit) in it is released. One that a time limit cancels is a failure for its guard, so that a
//! breaker opens for a backend that hangs. The slower attempt of a hedged call, and those of a call that its caller drops,
//! are ignored.

mod budget;
#[cfg(feature = "tokio")]
mod call;
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only calls use it"))]
mod latencies;
#[cfg_attr(not(feature = "tokio"), allow(dead_code, reason = "only calls use it"))]
mod retrier;
mod settings;

pub use budget::RetryBudget;
#[cfg(feature = "tokio")]
pub use call::limit_time;
pub use retrier::{Retrier, RetryAction, RetryCounts};
pub use settings::{HedgeDelay, RetryBuilder};
