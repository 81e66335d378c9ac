//! Replays access logs through a policy on the clock of the log, and suggests quotas from them.
//!
//! ```
//! use std::path::Path;
//! use tidegate_policy::Policy;
//! use tidegate_replay::{
//!     log::{LineFormats, LogInput, RequestLog},
//!     replay_log,
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let lines = "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n".repeat(3);
//! let input = LogInput::from_bytes("access.log", lines.into_bytes());
//! let log = RequestLog::open(vec![input], LineFormats::builtin(&[])?, None)?;
//! let policy: Policy = "rules: [{ name: per-ip, key: ip, quota: 2/h }]".parse()?;
//! let result = replay_log(log, (&policy, Path::new("")), None, |_| {})?;
//! assert_eq!((result.stats.admitted, result.stats.denied), (2, 1));
//! # Ok(())
//! # }
//! ```
//!
//! ```text
//!   files ──read, parse──▶ batches of records ──merge by time──▶ requests ──▶ policy on the log's clock ──▶ report
//!            one thread for each file                     this thread
//! ```
//!
//! | item | meaning |
//! |---|---|
//! | [`log::RequestLog`] | the requests of several files, ordered by time |
//! | [`log::LineFormats`] | the formats of lines: built-in ones, or a custom one |
//! | [`Replay`] | one policy and its clock |
//! | [`report::ReplayReport`] | the result as text, JSON and HTML |
//! | [`suggest::Suggestion`] | quotas for a log, with the evidence |
//!
//! It does not need memory in proportion to the log: batches have a fixed size, tables of keys are bounded, and the report
//! lists what did not fit. It does not use the stores of a policy; all counters are in memory.

mod compare;
pub mod log;
pub mod report;
mod run;
pub mod suggest;

pub use compare::{Comparison, KeyChange, PolicyDifference};
pub use run::{
    EpisodeLengths, Episodes, NO_DURATIONS, PolicyStats, Replay, ReplayError, ReplayProgress, ReplayResult,
    ReplayVerdict, RuleStats, Timeline, TimelineBin, replay_log,
};
