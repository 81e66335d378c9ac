//! Tests of the rate limit service: counting, verdicts and metrics.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails where it panics")]

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
