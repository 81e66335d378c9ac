//! `tidegate serve` as people run it: the binary, real clients in front of it and real servers behind it.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod bench;
mod curl;
mod full;
mod killed;
mod large;
mod log;
mod outage;
mod promote;
mod refusal;
mod reload;
mod slow;
mod stage;
mod suggest;
mod top;
mod truncated;
mod websocket;
mod why;
