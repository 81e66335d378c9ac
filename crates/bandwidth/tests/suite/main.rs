//! The integration tests of byte rates, in one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod bodies;
mod items;
mod keys;
mod lifecycle;
mod rate;
mod transfers;
