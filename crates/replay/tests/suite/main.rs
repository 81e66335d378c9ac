//! Logs and policies, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod bad;
mod compared;
mod counts;
mod documents;
mod formats;
mod plain;
mod play;
mod suggested;
mod waits;
