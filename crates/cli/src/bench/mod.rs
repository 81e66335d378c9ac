//! Sends an open-loop load and compares the outcome with the decisions of a policy.
//!
//! ```text
//!   schedule ──due──▶ queue ──▶ connections ──▶ gateway
//!                                   │   ▲
//!                        sent, time │   │ response
//!                                   ▼   │
//!                        ExpectedPolicy: the policy in memory, at the times of the requests
//! ```
//!
//! Requests are sent when they are due, also if the gateway is slow. Latency counts from the due time, so queueing delays are
//! included (no coordinated omission).

mod connection;
mod expected;
pub(crate) mod find;
mod json;
mod latency;
mod outcome;
mod request;
mod run;
mod schedule;
mod text;

pub(crate) use connection::BenchHttpVersion;
pub(crate) use expected::ExpectedPolicy;
pub(crate) use json::render_json;
pub(crate) use outcome::BenchOutcome;
pub(crate) use request::{BenchTarget, RequestTemplate};
pub(crate) use run::{BenchPlan, run};
pub(crate) use schedule::{LoadPhase, Schedule};
pub(crate) use text::render_text;
