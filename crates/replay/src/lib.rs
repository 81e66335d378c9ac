//! Access logs played through a policy on their own clock, and quotas suggested from them.
//!
//! ```text
//!   files ──read, parse──▶ batches of records ──merge by time──▶ line ──▶ policy on the log's clock ──▶ report
//!            one thread for each file                     this thread
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`log::RequestLog`] | the requests of several files, in the order of time |
//! | [`log::LineFormats`] | how lines are read: known formats, or one of yours |
//! | [`Replay`] | one policy and its clock; asked line by line |
//! | [`report::ReplayReport`] | what came of it, as text, JSON and HTML |
//! | [`suggest::Suggestion`] | quotas for a log, with the evidence |
//!
//! Memory does not grow with a log: batches are of one size, counters of keys are bounded, and what a bound has left out is
//! told.

mod compare;
pub mod log;
pub mod report;
mod run;
pub mod suggest;

pub use compare::{Comparison, KeyChange, PolicyDifference};
pub use run::{
    EpisodeLengths, Episodes, PolicyStats, Replay, ReplayError, ReplayProgress, ReplayResult, ReplayVerdict,
    RuleStats, Timeline, TimelineBin, replay_log,
};
