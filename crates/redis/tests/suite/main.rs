//! The store against real servers, in one program: it is built and linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod availability;
mod cluster;
mod common;
mod conformance;
mod connecting;
mod events;
mod fleet;
mod operations;
mod outage;
mod refusals;
mod sentinel;
mod tally;
mod tiers;
mod twins;
