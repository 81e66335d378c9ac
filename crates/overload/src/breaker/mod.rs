//! A circuit breaker: calls that would fail anyway are not made.
//!
//! ```text
//!               rate ≥ threshold             open time over
//!      CLOSED ───────────────────────▶ OPEN ────────────────▶ HALF-OPEN
//!        ▲                              ▲                      │   │
//!        │                              └─── probes failed ────┘   │
//!        └───────────────────── probes went well ──────────────────┘
//! ```
//!
//! A pure state machine: time and chance are arguments. Rates are compared by `>=` and without rounding; a call is
//! slow if it took longer than the threshold. Nothing moves by itself: the next question finds that a time is over.
//!
//! Every pass belongs to a generation, and every change of state starts another. A result that comes back in another
//! generation decides nothing and is not recorded, so a call from before cannot close or open a half-open breaker.
//!
//! It cannot wedge. A probe that is ignored gives its place back, and the deadline ends the wait for those that are
//! never heard of. Its surprise: at the deadline the next question judges by the results that are there, with the
//! missing ones as failures, and opens if there are none. A breaker with few calls would otherwise never see all its
//! probes, and never close.

#[cfg(all(test, loom))]
mod loom;
mod settings;
mod shared;
mod snapshot;
mod window;

pub use settings::{BreakerBuilder, BreakerSettings};
pub use shared::{Breaker, BreakerEntry};
pub use snapshot::{BreakerSnapshot, BreakerState};
pub use window::CallCounts;

use crate::{call_outcome::CallOutcome, rejection::Rejection};
use tidegate_core::{Micros, Percent};
use window::{CallWindow, PackedOutcome};

/// Which stretch between two changes of state a pass was given in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// A shell has room for a few bits beside one. They begin anew after 570 years of a change in each microsecond.
    pub const BITS: u32 = 54;

    fn next(self) -> Self {
        Self((self.0 + 1) % (1 << Self::BITS))
    }
}

/// What would change nothing, so that a shell need not ask or tell until the next change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// Every question and every report counts.
    None,
    /// All pass.
    Admit,
    /// All pass, and quick successes open nothing: it is enough to hand in their number before anything else is told.
    CountSuccess,
    /// All pass, and one more quick success changes nothing.
    SkipSuccess,
    /// All pass, and no report changes anything.
    SkipAll,
}

/// The state of a breaker.
///
/// ```
/// use tidegate_overload::{BreakerSettings, BreakerState, Rejection, CallOutcome, breaker::BreakerMachine};
/// use tidegate_core::Micros;
///
/// let settings = BreakerSettings::builder().count_window(2).open_for(Micros::from_secs(5)).build()?;
/// let mut breaker = BreakerMachine::new(settings);
/// for second in [0, 1] {
///     let (now, roll, took) = (Micros::from_secs(second), 0.5, Micros::ZERO);
///     let acquire = breaker.try_acquire(now, roll).unwrap();
///     breaker.record(acquire, CallOutcome::Failure, took, now, roll);
/// }
/// let wait = Micros::from_secs(3);
/// assert_eq!(breaker.try_acquire(Micros::from_secs(3), 0.5), Err(Rejection::Open(wait)));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BreakerMachine {
    settings: BreakerSettings,
    mode: BreakerMode,
    generation: Generation,
    window: CallWindow,
    rejected: u64,
    /// How often it opened since it was closed, and for how long last time, before chance had its say.
    attempts: u32,
    open_time: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
enum BreakerMode {
    Closed,
    Open { span: StateTimer, counts: CallCounts },
    HalfOpen { span: StateTimer, free_probes: u32, results: CallCounts },
    ForcedOpen,
    Disabled,
    MetricsOnly,
}

/// A stretch of time. A clock that steps back before its start begins it anew, so that it is seen in full once and
/// ends even if the clock had been far ahead by mistake.
#[derive(Clone, Copy, Debug)]
struct StateTimer {
    start: Micros,
    duration: Micros,
}

impl StateTimer {
    fn remaining(&self, now: Micros) -> Micros {
        self.duration.since(now.since(self.start))
    }

    fn is_elapsed(&mut self, now: Micros) -> bool {
        self.start = self.start.min(now);
        self.remaining(now) == Micros::ZERO
    }
}

impl BreakerMachine {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        let window = CallWindow::new(&settings);
        let mode = BreakerMode::Closed;
        Self { settings, mode, generation: Generation(0), window, rejected: 0, attempts: 0, open_time: None }
    }

    /// Asks to make a call. Whoever passes reports exactly once how it ended. The roll, from 0 to 1, spreads the
    /// open time.
    pub fn try_acquire(&mut self, now: Micros, roll: f64) -> Result<Generation, Rejection> {
        self.advance(now, roll);
        let rejection = match &mut self.mode {
            BreakerMode::Closed | BreakerMode::Disabled | BreakerMode::MetricsOnly => {
                return Ok(self.generation);
            }
            BreakerMode::HalfOpen { free_probes: free, .. } if *free > 0 => {
                *free -= 1;
                return Ok(self.generation);
            }
            BreakerMode::HalfOpen { span, .. } => Rejection::Probing(span.remaining(now)),
            BreakerMode::Open { span, .. } => Rejection::Open(span.remaining(now)),
            BreakerMode::ForcedOpen => Rejection::ForcedOpen,
        };
        self.rejected = self.rejected.saturating_add(1);
        Err(rejection)
    }

    /// Tells how a call ended and how long it took.
    pub fn record(&mut self, pass: Generation, report: CallOutcome, took: Micros, now: Micros, roll: f64) {
        if pass != self.generation {
            return;
        }
        if report == CallOutcome::Ignored {
            if let BreakerMode::HalfOpen { free_probes: free, results, .. } = &mut self.mode {
                let places = u64::from(self.settings.probes).saturating_sub(results.calls);
                *free = free.saturating_add(1).min(u32::try_from(places).unwrap_or(u32::MAX));
            }
            return;
        }

        let outcome = PackedOutcome::new(report == CallOutcome::Failure, self.settings.is_slow(took));
        match &mut self.mode {
            BreakerMode::Closed => {
                let counts = self.window.record(now, outcome);
                if counts.calls >= self.settings.min_calls && self.settings.is_threshold_reached(counts) {
                    self.open(counts, now, roll);
                }
            }
            BreakerMode::MetricsOnly => {
                self.window.record(now, outcome);
            }
            BreakerMode::HalfOpen { results, .. } => {
                results.add(outcome);
                let results = *results;
                if results.calls >= self.settings.quorum() {
                    self.evaluate_probes(results, now, roll);
                }
            }
            BreakerMode::Open { .. } | BreakerMode::ForcedOpen | BreakerMode::Disabled => {}
        }
    }

    /// Records so many quick successes at once, that were counted by the leeway of
    /// [`CountSuccess`](FastPath::CountSuccess) in this generation.
    pub fn record_successes(&mut self, calls: u64) {
        if matches!(self.mode, BreakerMode::Closed | BreakerMode::MetricsOnly) {
            self.window.record_successes(calls);
        }
    }

    /// Closes it by hand, with nothing recorded.
    pub fn close(&mut self) {
        self.window.clear();
        self.attempts = 0;
        self.open_time = None;
        self.set_mode(BreakerMode::Closed);
    }

    /// Opens it by hand for so long, as if it had opened by itself; later open times do not grow because of it.
    pub fn open_for(&mut self, now: Micros, time: Micros) {
        let span = StateTimer { start: now, duration: time.max(Micros::new(1)) };
        self.set_mode(BreakerMode::Open { span, counts: CallCounts::default() });
    }

    /// Opens it by hand, until a hand changes that.
    pub fn force_open(&mut self) {
        self.set_mode(BreakerMode::ForcedOpen);
    }

    /// Lets all calls pass and records nothing, until a hand changes that.
    pub fn disable(&mut self) {
        self.set_mode(BreakerMode::Disabled);
    }

    /// Lets all calls pass and records them, starting from nothing, until a hand changes that.
    pub fn set_metrics_only(&mut self) {
        self.window.clear();
        self.set_mode(BreakerMode::MetricsOnly);
    }

    /// What would change nothing now.
    pub fn fast_path(&self) -> FastPath {
        match self.mode {
            BreakerMode::Closed | BreakerMode::MetricsOnly => self.window.fast_path(),
            BreakerMode::Disabled => FastPath::SkipAll,
            BreakerMode::Open { .. } | BreakerMode::HalfOpen { .. } | BreakerMode::ForcedOpen => {
                FastPath::None
            }
        }
    }

    /// Whether no report could open it now, and none is counted by time: then the time of a report, and its roll,
    /// do not matter.
    pub fn is_time_independent(&self) -> bool {
        match self.mode {
            BreakerMode::Closed | BreakerMode::MetricsOnly => match self.window.worst_case() {
                Some(counts) => {
                    counts.calls < self.settings.min_calls || !self.settings.is_threshold_reached(counts)
                }
                None => false,
            },
            BreakerMode::Disabled | BreakerMode::ForcedOpen | BreakerMode::Open { .. } => true,
            BreakerMode::HalfOpen { .. } => false,
        }
    }

    /// The settings.
    pub fn settings(&self) -> &BreakerSettings {
        &self.settings
    }

    /// The current generation.
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// What it does with calls. An open breaker is open until somebody asks.
    pub fn state(&self) -> BreakerState {
        match self.mode {
            BreakerMode::Closed => BreakerState::Closed,
            BreakerMode::Open { .. } => BreakerState::Open,
            BreakerMode::HalfOpen { .. } => BreakerState::HalfOpen,
            BreakerMode::ForcedOpen => BreakerState::ForcedOpen,
            BreakerMode::Disabled => BreakerState::Disabled,
            BreakerMode::MetricsOnly => BreakerState::MetricsOnly,
        }
    }

    /// All numbers at once.
    pub fn snapshot(&self, now: Micros) -> BreakerSnapshot {
        let (counts, needed, remaining) = match &self.mode {
            BreakerMode::Closed | BreakerMode::MetricsOnly => {
                (self.window.counts(now), self.settings.min_calls, None)
            }
            BreakerMode::Open { span, counts: because } => (*because, 1, Some(span.remaining(now))),
            BreakerMode::HalfOpen { span, results, .. } => {
                (*results, self.settings.quorum(), Some(span.remaining(now)))
            }
            BreakerMode::ForcedOpen | BreakerMode::Disabled => (CallCounts::default(), 1, None),
        };
        let rate = |part| (counts.calls >= needed).then(|| Percent::from_ratio(part, counts.calls));
        BreakerSnapshot {
            state: self.state(),
            generation: self.generation.0,
            counts,
            failure_rate: rate(counts.failures),
            slow_rate: rate(counts.slow).filter(|_| self.settings.is_timed()),
            rejected: self.rejected,
            attempts: self.attempts,
            remaining,
        }
    }

    /// Goes on to the next state if this one has lasted its time.
    fn advance(&mut self, now: Micros, roll: f64) {
        let (BreakerMode::Open { span, .. } | BreakerMode::HalfOpen { span, .. }) = &mut self.mode else {
            return;
        };
        if !span.is_elapsed(now) {
            return;
        }
        match self.mode {
            BreakerMode::Open { .. } => self.enter_half_open(now),
            _ => self.evaluate_expired_probes(now, roll),
        }
    }

    fn enter_half_open(&mut self, now: Micros) {
        let span = StateTimer { start: now, duration: self.settings.deadline };
        self.set_mode(BreakerMode::HalfOpen {
            span,
            free_probes: self.settings.probes,
            results: CallCounts::default(),
        });
    }

    /// The deadline is over: those that have not answered count as failed and slow.
    fn evaluate_expired_probes(&mut self, now: Micros, roll: f64) {
        let BreakerMode::HalfOpen { free_probes: free, mut results, .. } = self.mode else { return };
        if results.calls == 0 {
            return self.open(results, now, roll);
        }
        let missing = u64::from(self.settings.probes.saturating_sub(free)).saturating_sub(results.calls);
        results.calls += missing;
        results.failures += missing;
        results.slow += missing;
        self.evaluate_probes(results, now, roll);
    }

    fn evaluate_probes(&mut self, results: CallCounts, now: Micros, roll: f64) {
        match self.settings.is_threshold_reached(results) {
            true => self.open(results, now, roll),
            false => self.close(),
        }
    }

    fn open(&mut self, because: CallCounts, now: Micros, roll: f64) {
        let open_time = self.settings.next_open_time(self.open_time);
        self.attempts = self.attempts.saturating_add(1);
        self.open_time = Some(open_time);
        let span = StateTimer { start: now, duration: self.settings.apply_jitter(open_time, roll) };
        self.set_mode(BreakerMode::Open { span, counts: because });
    }

    fn set_mode(&mut self, mode: BreakerMode) {
        self.mode = mode;
        self.generation = self.generation.next();
    }
}
