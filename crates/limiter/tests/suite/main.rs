//! The stories and laws of the engine, in one program: it is built and linked once. What looks at the whole process lies
//! beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod acquire;
mod bad_input;
mod batch;
mod clocks;
mod common;
mod conformance;
mod full_table;
mod keys;
mod model;
mod multiple_quotas;
mod outages;
mod replacement;
mod semaphore;
mod stream_limits;
mod threads;
mod tiers;
mod traces;
mod wait_queues;
