//! Evaluates a policy for the requests of a log, on the clock of the log.

mod episodes;
mod error;
mod replay;
mod replay_log;
mod stats;
mod timeline;

pub use episodes::{EpisodeLengths, Episodes};
pub use error::ReplayError;
pub use replay::{Replay, ReplayVerdict};
pub use replay_log::{NO_DURATIONS, ReplayProgress, ReplayResult, replay_log};
pub use stats::{PolicyStats, RuleStats};
pub use timeline::{Timeline, TimelineBin};
