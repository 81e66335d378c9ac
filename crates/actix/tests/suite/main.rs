//! The integration tests of the middleware, in one binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod guards;
mod limit;
mod server;
mod support;
