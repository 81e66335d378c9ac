//! Stories of the decision service's wires: real clients and real servers on loopback, and somebody in the middle who says what
//! the story wants.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod crowd;
mod dropin;
mod grpc;
mod host;
mod json;
mod served;
mod service;
mod stage;
mod xds;
