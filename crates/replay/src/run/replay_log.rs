//! A whole log through one policy or two.

use super::{PolicyStats, Replay, ReplayError};
use crate::{
    compare::{Comparison, PolicyDifference},
    log::{LogStats, RequestLog},
};
use std::path::Path;
use tidegate_policy::Policy;

/// What came of a log.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// What is told of the log.
    pub log: LogStats,
    /// What the policy did.
    pub stats: PolicyStats,
    /// What the policy did that it is compared with, and where they differ.
    pub comparison: Option<(PolicyStats, PolicyDifference)>,
    /// What does not follow from the log.
    pub notes: Vec<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Requests that were asked about.
    pub requests: u64,
    /// Bytes that were read, packed as they are.
    pub bytes_read: u64,
    /// All of them, if that is known.
    pub total_bytes: Option<u64>,
}

/// How many requests go by before progress is told.
const PROGRESS_INTERVAL: u64 = 1 << 14;

/// How many requests are looked at together, so that what is known of them comes from memory at the same time.
const REQUESTS_PER_BATCH: usize = 32;

/// What the tables of all rules may take together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryBudget {
    /// Little: keys lie close to each other then, which is far faster, and few logs need more.
    Small,
    /// As much as in a gateway.
    Full,
}

impl MemoryBudget {
    fn bytes(self) -> u64 {
        match self {
            Self::Small => 24 << 20,
            Self::Full => 1 << 30,
        }
    }
}

/// Plays a whole log through a policy, and beside it through another one.
///
/// Each policy comes with the folder that names of files in it start from.
pub fn replay_log(
    mut log: RequestLog,
    policy: (&Policy, &Path),
    against: Option<(&Policy, &Path)>,
    mut on_progress: impl FnMut(ReplayProgress),
) -> Result<ReplayResult, ReplayError> {
    if log.can_reopen() {
        let mut playing = ReplayRun::new(&log, policy, against, MemoryBudget::Small)?;
        if playing.run(&mut log, &mut on_progress)? == RunEnd::EndOfLog {
            return playing.finish(&log);
        }
        // There are more keys than that: from the start again, with room for them.
        log = log.reopen().transpose()?.unwrap_or(log);
    }
    let mut playing = ReplayRun::new(&log, policy, against, MemoryBudget::Full)?;
    playing.run(&mut log, &mut on_progress)?;
    playing.finish(&log)
}

/// A log that is being played.
struct ReplayRun {
    memory: MemoryBudget,
    replay: Replay,
    comparison: Option<Comparison>,
    has_durations: bool,
}

/// Why a log is not played any further.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunEnd {
    EndOfLog,
    TableFull,
}

impl ReplayRun {
    fn new(
        log: &RequestLog,
        policy: (&Policy, &Path),
        against: Option<(&Policy, &Path)>,
        room: MemoryBudget,
    ) -> Result<Self, ReplayError> {
        let start = log.start_time()?;
        let replay = |(policy, base)| Replay::new(policy, base, start, room.bytes());
        Ok(Self {
            memory: room,
            replay: replay(policy)?,
            comparison: against.map(|against| replay(against).map(Comparison::new)).transpose()?,
            has_durations: false,
        })
    }

    fn run(
        &mut self,
        log: &mut RequestLog,
        on_progress: &mut impl FnMut(ReplayProgress),
    ) -> Result<RunEnd, ReplayError> {
        let Self { replay, comparison: against, .. } = self;
        let gates = [Some(replay.gate()), against.as_ref().map(Comparison::gate)];
        log.set_prefetch_policies(gates.into_iter().flatten().cloned().collect());
        let mut verdicts = Vec::with_capacity(REQUESTS_PER_BATCH);
        let (mut requests, mut tell_at) = (0, PROGRESS_INTERVAL);
        while let Some(lines) = log.next_requests(REQUESTS_PER_BATCH)? {
            replay.evaluate(lines, lines.prefetch(0), &mut verdicts);
            if let Some(other) = against {
                other.evaluate(lines, lines.prefetch(1), &verdicts, replay);
            }
            self.has_durations =
                self.has_durations || lines.iter().any(|(line, _)| line.duration().is_some());
            requests += lines.len() as u64;
            if requests >= tell_at {
                tell_at += PROGRESS_INTERVAL;
                let (read, size) = log.progress();
                on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
                if self.memory == MemoryBudget::Small && has_overflowed(replay, against.as_ref()) {
                    return Ok(RunEnd::TableFull);
                }
            }
        }
        let (read, size) = log.progress();
        on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
        match has_overflowed(replay, against.as_ref()) {
            true => Ok(RunEnd::TableFull),
            false => Ok(RunEnd::EndOfLog),
        }
    }

    fn finish(self, log: &RequestLog) -> Result<ReplayResult, ReplayError> {
        let mut notes = Vec::new();
        if self.replay.has_concurrency_rules() && !self.has_durations {
            notes.push(
                "the log does not tell how long requests took, so that one is in flight only while it waits; log \
                 $request_time, %D or %DURATION%"
                    .to_owned(),
            );
        }
        notes.extend(self.replay.notes());
        let others = self.comparison.iter().flat_map(Comparison::notes);
        notes.extend(others.map(|note| format!("in the other policy, {note}")));
        let tally = self.replay.finish()?;
        let against = self.comparison.map(Comparison::finish).transpose()?;
        Ok(ReplayResult { log: log.stats(), stats: tally, comparison: against, notes })
    }
}

fn has_overflowed(replay: &Replay, against: Option<&Comparison>) -> bool {
    replay.has_overflowed() || against.is_some_and(Comparison::has_overflowed)
}
