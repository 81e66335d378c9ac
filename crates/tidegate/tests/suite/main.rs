//! The tests of the examples and of rules in Redis, in one binary. Tests that change the global rules have their own
//! binaries beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod example_actix;
#[cfg(all(feature = "axum", feature = "redis"))]
mod example_fleet;
#[cfg(all(feature = "axum", feature = "policy"))]
mod example_policy;
#[cfg(feature = "tonic")]
mod example_tonic;
mod examples;
mod gate_in_redis;
mod root_names;
mod rules_in_redis;
