//! Tests of byte rates and paced streams, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod items;
mod lifecycle;
mod rate;
mod transfers;
