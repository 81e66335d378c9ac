//! The generated code matches the `.proto` files, and the messages match Envoy's.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "this is how a test fails")]

mod field_numbers;
mod generated;
mod json;
