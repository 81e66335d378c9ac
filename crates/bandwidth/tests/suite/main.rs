//! Tests of byte rates and paced streams, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod bandwidth;
mod bandwidth_items;
mod bandwidth_life;
mod movers;
