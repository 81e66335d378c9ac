//! One policy, asked line by line on the log's own clock.

mod episodes;
mod failure;
mod play;
mod replay;
mod tally;
mod timeline;

pub use episodes::{Episodes, Lengths};
pub use failure::Failure;
pub use play::{Play, Progress, play};
pub use replay::{Replay, Verdict};
pub use tally::{RuleTally, Tally};
pub use timeline::{Bin, Timeline};
