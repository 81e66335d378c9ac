//! An open-loop load, and what became of it against what a policy would have said.
//!
//! ```text
//!   schedule ──due──▶ line ──▶ connections ──▶ gateway
//!                                  │   ▲
//!                         sent, at │   │ answer
//!                                  ▼   │
//!                          twin: the policy in memory, on the clock of what was sent
//! ```
//!
//! Requests go when they are due, whatever the gateway does: one that is slow is asked as much as one that is fast, and how long
//! an answer took counts from when its request was due.

mod connection;
mod expected;
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
