//! The breaker: stories of its peers, laws on random stories, and input that makes no sense.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod compatibility;
mod edge_cases;
mod properties;
mod reference_model;
mod script;
