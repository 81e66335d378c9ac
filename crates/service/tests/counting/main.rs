//! Stories of the decision service: what is counted, what is said, and what is told to operators.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a story ends where it goes wrong"
)]

mod common;
mod concurrency;
mod outage;
mod reference;
mod reference_model;
mod reload;
mod reservations;
mod responses;
mod scenarios;
mod shared_keys;
