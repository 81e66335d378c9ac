//! The integration tests of the layers, in one binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod access;
#[cfg(feature = "axum")]
mod axum;
mod bandwidth;
mod concurrency;
mod context;
mod contract;
#[cfg(feature = "tonic")]
mod grpc;
mod guard;
#[cfg(all(feature = "axum", feature = "reqwest"))]
mod guard_clients;
mod hyper;
#[cfg(feature = "policy")]
mod policy;
mod priority;
mod retry;
mod retry_after;
#[cfg(feature = "reqwest")]
mod retry_after_reqwest;
#[cfg(feature = "reqwest")]
mod retry_reqwest;
#[cfg(feature = "axum")]
mod servers;
mod service_contract;
mod support;
#[cfg(feature = "tonic")]
mod tonic;
