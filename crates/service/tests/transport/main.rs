//! Tests of the transports: real clients and real servers on loopback, with a stub or a real decider.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails where it panics")]

mod common;
mod concurrency;
mod drop_in;
mod grpc;
mod grpc_service;
mod health_and_tls;
mod json;
mod server;
mod xds;
