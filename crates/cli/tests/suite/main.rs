//! Stories of the binary, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod closed_loop;
mod common;
mod images;
mod import;
mod json;
mod manual;
mod policy;
mod replay;
mod simulate;
mod verify;
