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

/// How many requests are looked at together, so that what is known of them comes from memory at the same time.
const TOGETHER: usize = 32;

/// What the tables of all rules may take together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Little: keys lie close to each other then, which is far faster, and few logs need more.
    Little,
    /// As much as in a gateway.
    Full,
}

impl Room {
    fn bytes(self) -> u64 {
        match self {
            Self::Little => 24 << 20,
            Self::Full => 1 << 30,
        }
    }
}

/// Plays a whole log through a policy, and beside it through another one.
///
/// Each policy comes with the folder that names of files in it start from.
pub fn play(
    mut log: Log,
    policy: (&Policy, &Path),
    against: Option<(&Policy, &Path)>,
    mut told: impl FnMut(Progress),
) -> Result<Play, Failure> {
    if log.can_start_again() {
        let mut playing = Playing::new(&log, policy, against, Room::Little)?;
        if playing.run(&mut log, &mut told)? == Ended::AtTheEnd {
            return playing.finish(&log);
        }
        // There are more keys than that: from the start again, with room for them.
        log = log.again().transpose()?.unwrap_or(log);
    }
    let mut playing = Playing::new(&log, policy, against, Room::Full)?;
    playing.run(&mut log, &mut told)?;
    playing.finish(&log)
}

/// A log that is being played.
struct Playing {
    room: Room,
    replay: Replay,
    against: Option<Comparison>,
    tells_length: bool,
}

/// Why a log is not played any further.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    AtTheEnd,
    OutOfRoom,
}

impl Playing {
    fn new(
        log: &Log,
        policy: (&Policy, &Path),
        against: Option<(&Policy, &Path)>,
        room: Room,
    ) -> Result<Self, Failure> {
        let start = log.start()?;
        let replay = |(policy, base)| Replay::new(policy, base, start, room.bytes());
        Ok(Self {
            room,
            replay: replay(policy)?,
            against: against.map(|against| replay(against).map(Comparison::with)).transpose()?,
            tells_length: false,
        })
    }

    fn run(&mut self, log: &mut Log, told: &mut impl FnMut(Progress)) -> Result<Ended, Failure> {
        let Self { replay, against, .. } = self;
        let gates = [Some(replay.gate()), against.as_ref().map(Comparison::gate)];
        log.look_ahead_for(gates.into_iter().flatten().cloned().collect());
        let mut verdicts = Vec::with_capacity(TOGETHER);
        let (mut requests, mut tell_at) = (0, TOLD);
        while let Some(lines) = log.next_lines(TOGETHER)? {
            replay.ask(lines, lines.prefetch(0), &mut verdicts);
            if let Some(other) = against {
                other.ask(lines, lines.prefetch(1), &verdicts, replay);
            }
            self.tells_length = self.tells_length || lines.iter().any(|(line, _)| line.took().is_some());
            requests += lines.len() as u64;
            if requests >= tell_at {
                tell_at += TOLD;
                let (read, size) = log.progress();
                told(Progress { requests, read, size });
                if self.room == Room::Little && has_overflowed(replay, against.as_ref()) {
                    return Ok(Ended::OutOfRoom);
                }
            }
        }
        let (read, size) = log.progress();
        told(Progress { requests, read, size });
        match has_overflowed(replay, against.as_ref()) {
            true => Ok(Ended::OutOfRoom),
            false => Ok(Ended::AtTheEnd),
        }
    }

    fn finish(self, log: &Log) -> Result<Play, Failure> {
        let mut notes = Vec::new();
        if self.replay.counts_in_flight() && !self.tells_length {
            notes.push(
                "the log does not tell how long requests took, so that one is in flight only while it waits; log \
                 $request_time, %D or %DURATION%"
                    .to_owned(),
            );
        }
        notes.extend(self.replay.notes());
        let others = self.against.iter().flat_map(Comparison::notes);
        notes.extend(others.map(|note| format!("in the other policy, {note}")));
        let tally = self.replay.finish()?;
        let against = self.against.map(Comparison::finish).transpose()?;
        Ok(Play { log: log.stats(), tally, against, notes })
    }
}

fn has_overflowed(replay: &Replay, against: Option<&Comparison>) -> bool {
    replay.has_overflowed() || against.is_some_and(Comparison::has_overflowed)
}
