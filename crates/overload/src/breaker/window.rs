//! The window of past calls of a breaker: a number of calls, or a time.

use super::{
    FastPath,
    settings::{BreakerSettings, WindowSize},
};
use crate::rolling::RollingWindow;
use tidegate_core::Micros;

/// The outcome of a call, in two bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedOutcome(u64);

impl PackedOutcome {
    const FAILED: u64 = 1;
    const SLOW: u64 = 2;
    const BITS: usize = 2;
    const MASK: u64 = 3;

    pub(super) fn new(failed: bool, slow: bool) -> Self {
        Self(u64::from(failed) * Self::FAILED + u64::from(slow) * Self::SLOW)
    }

    fn failures(self) -> u64 {
        self.0 & Self::FAILED
    }

    fn slow(self) -> u64 {
        (self.0 & Self::SLOW) / Self::SLOW
    }
}

/// The number of calls, of failures and of slow calls; a call can be both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    /// All calls.
    pub calls: u64,
    /// The calls that failed.
    pub failures: u64,
    /// The slow calls, failed or not.
    pub slow: u64,
}

impl CallCounts {
    pub(super) fn add(&mut self, outcome: PackedOutcome) {
        self.calls += 1;
        self.failures += outcome.failures();
        self.slow += outcome.slow();
    }

    fn remove(&mut self, outcome: PackedOutcome) {
        self.calls -= 1;
        self.failures -= outcome.failures();
        self.slow -= outcome.slow();
    }
}

#[derive(Clone, Debug)]
pub(super) enum CallWindow {
    Calls(OutcomeRing),
    Time(RollingWindow<3>),
}

impl CallWindow {
    /// An empty window.
    pub(super) fn new(settings: &BreakerSettings) -> Self {
        match settings.window {
            WindowSize::Time { window, buckets } => Self::Time(RollingWindow::from_checked(window, buckets)),
            WindowSize::Calls(calls) => Self::Calls(OutcomeRing::new(calls)),
        }
    }

    pub(super) fn clear(&mut self) {
        match self {
            Self::Calls(ring) => ring.clear(),
            Self::Time(rolling) => rolling.clear(),
        }
    }

    /// Adds a call and returns the counts of the window.
    pub(super) fn record(&mut self, now: Micros, outcome: PackedOutcome) -> CallCounts {
        match self {
            Self::Calls(ring) => ring.push(outcome),
            Self::Time(rolling) => rolling.add(now, [1, outcome.failures(), outcome.slow()]),
        }
        self.counts(now)
    }

    pub(super) fn counts(&self, now: Micros) -> CallCounts {
        match self {
            Self::Calls(ring) => ring.counts,
            Self::Time(rolling) => {
                let [calls, failures, slow] = rolling.totals(now);
                CallCounts { calls, failures, slow }
            }
        }
    }

    /// The worst counts after one more call, if they do not depend on time.
    pub(super) fn worst_case(&self) -> Option<CallCounts> {
        let Self::Calls(OutcomeRing { size, counts, .. }) = self else { return None };
        let calls = (counts.calls + 1).min(*size as u64);
        Some(CallCounts { calls, failures: counts.failures + 1, slow: counts.slow + 1 })
    }

    /// Adds fast successes to a count window.
    pub(super) fn record_successes(&mut self, calls: u64) {
        let Self::Calls(ring) = self else { return };
        (0..calls.min(ring.size as u64)).for_each(|_| ring.push(PackedOutcome::default()));
    }

    /// In a full window a fast success replaces a call that was no better, so no rate can rise. If all were
    /// as good, nothing changes.
    pub(super) fn fast_path(&self) -> FastPath {
        match self {
            Self::Calls(OutcomeRing { size, counts, .. }) if counts.calls == *size as u64 => {
                match counts.failures + counts.slow {
                    0 => FastPath::SkipSuccess,
                    _ => FastPath::CountSuccess,
                }
            }
            _ => FastPath::Admit,
        }
    }
}

/// The most recent calls, two bits each.
#[derive(Clone, Debug)]
pub(super) struct OutcomeRing {
    words: Box<[u64]>,
    size: usize,
    /// The index of the next call; in a full ring, that of the oldest one.
    next: usize,
    counts: CallCounts,
}

impl OutcomeRing {
    const OUTCOMES_PER_WORD: usize = u64::BITS as usize / PackedOutcome::BITS;

    fn new(calls: u32) -> Self {
        let size = calls.max(1) as usize;
        let words = vec![0; size.div_ceil(Self::OUTCOMES_PER_WORD)].into();
        Self { words, size, next: 0, counts: CallCounts::default() }
    }

    fn clear(&mut self) {
        self.words.fill(0);
        self.next = 0;
        self.counts = CallCounts::default();
    }

    fn push(&mut self, outcome: PackedOutcome) {
        let shift = self.next % Self::OUTCOMES_PER_WORD * PackedOutcome::BITS;
        let Some(word) = self.words.get_mut(self.next / Self::OUTCOMES_PER_WORD) else { return };
        if self.counts.calls == self.size as u64 {
            self.counts.remove(PackedOutcome(*word >> shift & PackedOutcome::MASK));
        }
        *word = *word & !(PackedOutcome::MASK << shift) | outcome.0 << shift;
        self.counts.add(outcome);
        self.next = if self.next + 1 == self.size { 0 } else { self.next + 1 };
    }
}
