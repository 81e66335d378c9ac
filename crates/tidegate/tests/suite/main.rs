//! The examples and the rules in Redis, in one program: it is built and linked once. What sets up the rules of a whole
//! program lies beside this folder.

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
