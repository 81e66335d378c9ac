//! What Tidegate's tests share: stories that run on any implementation, strategies for random ones, and vectors
//! of the real Guava.
//!
//! | module | is |
//! |---|---|
//! | [`subject`] | whatever can be asked: the core, a store, a server |
//! | [`trace`] | reads and runs `.trace` stories on a subject |
//! | [`conformance`] | what must hold for every store |
//! | [`bound`] | what several quotas admit at most, and whether callers were admitted more |
//! | [`strategy`] | random quotas of every algorithm, and random callers |
//! | [`guava`] | recorded traces of Guava's `RateLimiter` |
//! | [`test_task`] | a future that is polled only after a wake-up, so that a lost one shows |
//! | [`mutation`] | texts that are spoiled in every way, for fuzzing |
//! | [`servers`] | real servers that a test starts, and wires to them that can be spoiled |
//!
//! A dev-dependency only: nothing here is meant for production.

pub mod bound;
pub mod conformance;
pub mod error_texts;
pub mod guava;
pub mod mutation;
#[cfg(target_os = "linux")]
pub mod servers;
pub mod strategy;
pub mod subject;
pub mod test_task;
pub mod trace;

pub use subject::{CoreModel, Subject};
