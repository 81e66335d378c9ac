//! Tests of the binary in one program, to build and link once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod apikey;
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
