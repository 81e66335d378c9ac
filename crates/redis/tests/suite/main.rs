//! The store against real servers, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

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
mod rejections;
mod sentinel;
mod tiers;
