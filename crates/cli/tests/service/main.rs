//! `tidegate serve --envoy-config` end to end: the binary with a real Envoy and a real nginx; and the decision API of
//! `tidegate serve`.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails where it panics, and prints what it skips"
)]

mod common;
mod config_reload;
mod envoy;
mod reload_under_load;
mod reservations;
mod schemathesis;
mod shared_keys;
mod startup_errors;
mod statsd;
