//! Generated code is what the files say, and what Envoy says.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod field_numbers;
mod generated;
mod json;
