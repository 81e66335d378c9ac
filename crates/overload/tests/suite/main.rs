//! Tests of overload protection, in one binary so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod adaptive;
mod adaptive_limit;
mod breaker;
mod error_rate;
mod fallback;
mod load;
mod load_level;
mod load_sources;
mod priority;
mod priority_limit;
mod retry;
mod rolling;
mod schedule;
mod shared_breaker;
