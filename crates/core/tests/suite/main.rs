//! The integration tests of the core, in one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod calendar;
mod guava;
mod header;
mod parse_errors;
mod properties;
mod quota;
mod regressions;
mod traces;
