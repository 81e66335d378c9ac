//! The tests of the limiter in one binary, which is built and linked once. Tests that measure the whole process are beside
//! this directory.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod acquire;
mod bad_input;
mod batch;
mod clocks;
mod common;
mod conformance;
mod full_table;
mod initial_tokens;
mod keys;
mod model;
mod multiple_quotas;
mod outages;
mod overrides;
mod replacement;
mod semaphore;
mod stream_limits;
mod threads;
mod tiers;
mod traces;
mod wait_queues;
