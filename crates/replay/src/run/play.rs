//! A whole log through one policy or two.

use super::{Failure, Replay, Tally};
use crate::{
    compare::{Comparison, Difference},
    log::{Log, LogStats},
};
use std::path::Path;
use tidegate_policy::Policy;

/// What came of a log.
#[derive(Clone, Debug)]
pub struct Play {
    /// What is told of the log.
    pub log: LogStats,
    /// What the policy did.
    pub tally: Tally,
    /// What the policy did that it is compared with, and where they differ.
    pub against: Option<(Tally, Difference)>,
    /// What does not follow from the log.
    pub notes: Vec<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Requests that were asked about.
    pub requests: u64,
    /// Bytes that were read, packed as they are.
    pub read: u64,
    /// All of them, if that is known.
    pub size: Option<u64>,
}

/// How many requests go by before progress is told.
const TOLD: u64 = 1 << 14;

/// Plays a whole log through a policy, and beside it through another one.
///
/// Each policy comes with the folder that names of files in it start from.
pub fn play(
    mut log: Log,
    policy: (&Policy, &Path),
    against: Option<(&Policy, &Path)>,
    mut told: impl FnMut(Progress),
) -> Result<Play, Failure> {
    let start = log.start()?;
    let mut replay = Replay::new(policy.0, policy.1, start)?;
    let mut other =
        against.map(|(policy, base)| Replay::new(policy, base, start).map(Comparison::with)).transpose()?;
    let mut requests = 0;
    let mut tells_length = false;
    while let Some((line, now)) = log.next_line()? {
        let verdict = replay.ask(&line, now);
        if let Some(other) = &mut other {
            other.ask(&line, now, verdict, &replay);
        }
        tells_length |= line.took().is_some();
        requests += 1;
        if requests % TOLD == 0 {
            let (read, size) = log.progress();
            told(Progress { requests, read, size });
        }
    }
    let (read, size) = log.progress();
    told(Progress { requests, read, size });
    let mut notes = Vec::new();
    if replay.counts_in_flight() && !tells_length {
        notes.push(
            "the log does not tell how long requests took, so that limits of requests in flight never fill; log \
             $request_time, %D or %DURATION%"
                .to_owned(),
        );
    }
    let tally = replay.finish()?;
    let against = other.map(Comparison::finish).transpose()?;
    Ok(Play { log: log.stats(), tally, against, notes })
}
