//! The store against real servers, in one program: it is built and linked once.

mod cluster;
mod common;
mod conformance;
mod connecting;
mod fleet;
mod operations;
mod outage;
mod refusals;
mod sentinel;
mod tiers;
mod twins;
