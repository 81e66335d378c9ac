//! One policy, asked line by line on the log's own clock.

mod episodes;
mod error;
mod replay;
mod replay_log;
mod stats;
mod timeline;

pub use episodes::{EpisodeLengths, Episodes};
pub use error::ReplayError;
pub use replay::{Replay, ReplayVerdict};
pub use replay_log::{ReplayProgress, ReplayResult, replay_log};
pub use stats::{PolicyStats, RuleStats};
pub use timeline::{Timeline, TimelineBin};
