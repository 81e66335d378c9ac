//! Stories of the decision service's wires: real clients and real servers on loopback, and somebody in the middle who says what
//! the story wants.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod common;
mod concurrency;
mod drop_in;
mod grpc;
mod grpc_service;
mod health_and_tls;
mod json;
mod server;
mod xds;
