//! Breaker tests: scripts compared with other libraries, properties, and invalid input.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod compatibility;
mod edge_cases;
mod properties;
mod reference_model;
mod script;
