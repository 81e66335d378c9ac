//! Stories of a gateway between real clients and real servers, on loopback.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a story ends where it goes wrong, and says what it could not try"
)]

mod decisions;
mod edge;
mod explain;
mod files;
mod fuzz;
mod import;
mod limits;
mod log;
mod modes;
mod observe;
mod patience;
mod policy;
mod proxy;
mod servers;
mod smuggling;
mod spellings;
mod stage;
mod tls;
mod traces;
mod trailers;
mod workers;
