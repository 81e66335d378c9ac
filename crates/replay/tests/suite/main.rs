//! The integration tests of the replay crate, in one binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod compare;
mod counts;
mod delays;
mod docs;
mod formats;
mod invalid_logs;
mod order;
mod reference;
mod servers;
mod suggest;
mod support;
