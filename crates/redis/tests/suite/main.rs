//! Tests of the store against real servers, in one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod availability;
mod cluster;
mod common;
mod conformance;
mod connect;
mod counters;
mod fleet;
mod log_events;
mod memory_parity;
mod operations;
mod outage;
mod overrides;
mod rejections;
mod sentinel;
mod tiers;
