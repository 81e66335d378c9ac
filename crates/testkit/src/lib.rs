//! What Tidegate's tests share: stories that run on any implementation, strategies for random ones, and vectors
//! of the real Guava.
//!
//! | module | is |
//! |---|---|
//! | [`subject`] | whatever can be asked: the core, a store, a server |
//! | [`trace`] | reads and runs `.trace` stories on a subject |
//! | [`strategy`] | random quotas of every algorithm, and random callers |
//! | [`guava`] | recorded traces of Guava's `RateLimiter` |
//!
//! A dev-dependency only: nothing here is meant for production.

pub mod guava;
pub mod strategy;
pub mod subject;
pub mod trace;

pub use subject::{Plain, Subject};
