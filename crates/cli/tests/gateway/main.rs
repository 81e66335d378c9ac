//! `tidegate serve` end to end: the binary with real clients and real upstream servers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails where it panics")]

mod audit;
mod bench;
mod common;
mod crash_recovery;
mod curl;
mod feature;
mod key_capacity;
mod large_bodies;
mod llm_clients;
mod log;
mod outage;
mod overrides;
mod overrides_crash;
mod prometheus;
mod promotion;
mod reload;
mod slow_clients;
mod startup_errors;
mod suggest;
mod top;
mod truncated_bodies;
mod websocket;
mod why;
