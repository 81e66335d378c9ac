//! The integration tests of lists and bans, in one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod bans;
mod lists;
