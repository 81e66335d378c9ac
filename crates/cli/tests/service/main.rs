//! `tidegate serve --envoy-config` as people run it: the binary, a real Envoy before it and a real nginx behind that; and
//! `tidegate serve` as programs ask it.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a story ends where it goes wrong, and says what it could not try"
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
