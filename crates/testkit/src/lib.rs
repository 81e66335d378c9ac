//! Shared test tools of Tidegate: traces that run on any implementation, random inputs, and real servers.
//!
//! ```
//! use tidegate_testkit::{CoreModel, trace};
//!
//! let text = "
//!     quota 10/s burst 3
//!     at 0ms    cost 2   allow  remaining 1
//!     at 0ms    cost 2   deny   retry 100ms
//!     at 100ms  cost 2   allow  remaining 0
//! ";
//! assert_eq!(trace::run(text, CoreModel::new), Ok(()));
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`subject`] | the interface of an implementation under test: the core, a store, a server |
//! | [`trace`] | parses `.trace` files and runs them on a subject |
//! | [`conformance`] | the properties of every store |
//! | [`bound`] | the maximum that several quotas admit, and checks against it |
//! | [`strategy`] | random quotas of every algorithm, and random calls |
//! | [`guava`] | recorded traces of Guava's `RateLimiter` |
//! | [`test_task`] | a future that is polled only after a wake-up, which exposes lost wake-ups |
//! | [`tokens`] | signed JSON Web Tokens |
//! | [`mutation`] | mutated texts, for fuzzing |
//! | [`error_texts`] | golden files of error messages, and a check that tests cover all of them |
//! | [`servers`] | real servers for tests, and a proxy that injects network faults |
//!
//! It does not belong in production code: it is a dev-dependency only.

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
pub mod tokens;
pub mod trace;

pub use subject::{CoreModel, Subject};
