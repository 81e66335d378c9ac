//! The middleware, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod guards;
mod limit;
mod server;
mod support;
