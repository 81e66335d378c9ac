//! The stories and laws of the core, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod guava;
mod header;
mod parse_errors;
mod properties;
mod quota;
mod regressions;
mod traces;
