//! Stories of a gateway between real clients and real servers, on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod decisions;
mod files;
mod limits;
mod log;
mod observe;
mod patience;
mod policy;
mod proxy;
mod servers;
mod smuggling;
mod stage;
mod tls;
mod traces;
mod trailers;
mod workers;
