//! Stories of the binary, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod closed_loop;
mod import;
mod json;
mod manual;
mod pictures;
mod policy;
mod program;
mod replay;
mod simulate;
mod verify;
