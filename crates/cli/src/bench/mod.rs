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
mod json;
mod latency;
mod outcome;
mod request;
mod run;
mod schedule;
mod text;
mod twin;

pub(crate) use connection::Version;
pub(crate) use json::json;
pub(crate) use outcome::Outcome;
pub(crate) use request::{Target, Template};
pub(crate) use run::{Plan, run};
pub(crate) use schedule::{Phase, Schedule};
pub(crate) use text::text;
pub(crate) use twin::Twin;
