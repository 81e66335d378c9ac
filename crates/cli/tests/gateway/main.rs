//! `tidegate serve` as people run it: the binary, real clients in front of it and real servers behind it.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod bench;
mod common;
mod crash_recovery;
mod curl;
mod key_capacity;
mod large_bodies;
mod log;
mod outage;
mod promotion;
mod reload;
mod slow_clients;
mod startup_errors;
mod suggest;
mod top;
mod truncated_bodies;
mod websocket;
mod why;
