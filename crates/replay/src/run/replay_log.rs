//! Replays a whole log through one or two policies.

use super::{PolicyStats, Replay, ReplayError};
use crate::{
    compare::{Comparison, PolicyDifference},
    log::{LogStats, RequestLog},
};
use std::path::Path;
use tidegate_policy::Policy;

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct ReplayResult {
    /// The statistics of the log.
    pub log: LogStats,
    /// The statistics of the policy.
    pub stats: PolicyStats,
    /// The statistics of the baseline policy, and the differences.
    pub comparison: Option<(PolicyStats, PolicyDifference)>,
    /// Limits of the accuracy, one sentence each.
    pub notes: Vec<String>,
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Requests that were evaluated.
    pub requests: u64,
    /// Bytes that were read, before decompression.
    pub bytes_read: u64,
    /// The size of the log in bytes, if known.
    pub total_bytes: Option<u64>,
}

/// The note about a log without durations.
pub const NO_DURATIONS: &str = "the log has no request durations, so a request is in flight only while it waits; log $request_time, %D or %DURATION%";

/// The number of requests between two progress reports.
const PROGRESS_INTERVAL: u64 = 1 << 14;

/// The number of requests that are evaluated together, so that their memory accesses overlap.
const REQUESTS_PER_BATCH: usize = 32;

/// The memory for the tables of all rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryBudget {
    /// A small budget, which is faster because of cache locality, and enough for most logs.
    Small,
    /// The budget of a gateway.
    Large,
}

impl MemoryBudget {
    fn bytes(self) -> u64 {
        match self {
            Self::Small => 24 << 20,
            Self::Large => 1 << 30,
        }
    }
}

/// Replays a whole log through a policy, and optionally through a baseline policy.
///
/// The path beside each policy is the base of relative file names in it.
///
/// # Errors
///
/// Returns an error if the log cannot be read, a policy cannot be compiled, or no request has the key of a rule.
pub fn replay_log(
    mut log: RequestLog,
    policy: (&Policy, &Path),
    baseline: Option<(&Policy, &Path)>,
    mut on_progress: impl FnMut(ReplayProgress),
) -> Result<ReplayResult, ReplayError> {
    if log.can_reopen() {
        let mut run = ReplayRun::new(&log, policy, baseline, MemoryBudget::Small)?;
        if run.run(&mut log, &mut on_progress)? == RunEnd::EndOfLog {
            return run.finish(&log);
        }
        // A table overflowed: replay again from the start with the full budget.
        log = log.reopen().transpose()?.unwrap_or(log);
    }
    let mut run = ReplayRun::new(&log, policy, baseline, MemoryBudget::Large)?;
    run.run(&mut log, &mut on_progress)?;
    run.finish(&log)
}

/// A replay in progress.
struct ReplayRun {
    memory: MemoryBudget,
    replay: Replay,
    comparison: Option<Comparison>,
    has_durations: bool,
}

/// Why a run has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RunEnd {
    EndOfLog,
    TableFull,
}

impl ReplayRun {
    fn new(
        log: &RequestLog,
        policy: (&Policy, &Path),
        baseline: Option<(&Policy, &Path)>,
        memory: MemoryBudget,
    ) -> Result<Self, ReplayError> {
        let start = log.start_time()?;
        let replay = |(policy, base)| Replay::new(policy, base, start, memory.bytes());
        Ok(Self {
            memory,
            replay: replay(policy)?,
            comparison: baseline.map(|against| replay(against).map(Comparison::new)).transpose()?,
            has_durations: false,
        })
    }

    fn run(
        &mut self,
        log: &mut RequestLog,
        on_progress: &mut impl FnMut(ReplayProgress),
    ) -> Result<RunEnd, ReplayError> {
        let Self { replay, comparison: baseline, .. } = self;
        let gates = [Some(replay.gate()), baseline.as_ref().map(Comparison::gate)];
        log.set_prefetch_policies(gates.into_iter().flatten().cloned().collect());
        let mut verdicts = Vec::with_capacity(REQUESTS_PER_BATCH);
        let (mut requests, mut next_report) = (0, PROGRESS_INTERVAL);
        while let Some(batch) = log.next_requests(REQUESTS_PER_BATCH)? {
            replay.evaluate(batch, batch.prefetch(0), &mut verdicts);
            if let Some(baseline) = baseline {
                baseline.evaluate(batch, batch.prefetch(1), &verdicts, replay);
            }
            self.has_durations =
                self.has_durations || batch.iter().any(|(line, _)| line.duration().is_some());
            requests += batch.len() as u64;
            if requests >= next_report {
                next_report += PROGRESS_INTERVAL;
                let (read, size) = log.progress();
                on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
                if self.memory == MemoryBudget::Small && has_overflowed(replay, baseline.as_ref()) {
                    return Ok(RunEnd::TableFull);
                }
            }
        }
        let (read, size) = log.progress();
        on_progress(ReplayProgress { requests, bytes_read: read, total_bytes: size });
        match has_overflowed(replay, baseline.as_ref()) {
            true => Ok(RunEnd::TableFull),
            false => Ok(RunEnd::EndOfLog),
        }
    }

    fn finish(self, log: &RequestLog) -> Result<ReplayResult, ReplayError> {
        let mut notes = Vec::new();
        if self.replay.has_concurrency_rules() && !self.has_durations {
            notes.push(NO_DURATIONS.to_owned());
        }
        notes.extend(self.replay.notes());
        let others = self.comparison.iter().flat_map(Comparison::notes);
        notes.extend(others.map(|note| format!("in the other policy, {note}")));
        let stats = self.replay.finish()?;
        let comparison = self.comparison.map(Comparison::finish).transpose()?;
        Ok(ReplayResult { log: log.stats(), stats, comparison, notes })
    }
}

fn has_overflowed(replay: &Replay, baseline: Option<&Comparison>) -> bool {
    replay.has_overflowed() || baseline.is_some_and(Comparison::has_overflowed)
}
