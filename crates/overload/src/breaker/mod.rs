//! A circuit breaker: it rejects calls that are likely to fail.
//!
//! ```text
//!               rate ≥ threshold             open time over
//!      CLOSED ───────────────────────▶ OPEN ────────────────▶ HALF-OPEN
//!        ▲                              ▲                      │   │
//!        │                              └─── probes failed ────┘   │
//!        └───────────────────── probes succeeded ──────────────────┘
//! ```
//!
//! A pure state machine: time and randomness are arguments. Rates are compared by `>=` and without rounding; a call is
//! slow if it took longer than the threshold. There is no timer: the next call finds that a period has ended.
//!
//! Every admission belongs to a generation, and every state change starts a new one. An outcome of an earlier generation
//! is dropped, so an old call cannot close or open a half-open breaker.
//!
//! A half-open breaker cannot hang. An ignored probe frees its slot, and a deadline ends the wait for probes without an
//! outcome: the next call then evaluates the results so far, counts missing ones as failures, and reopens the breaker if
//! there are no results. Otherwise a breaker with few calls would never complete its probes and never close.

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

/// The number of state changes before a call was admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Generation(pub u64);

impl Generation {
    /// `Breaker` packs other bits into the same word. The number wraps after 570 years with a change per
    /// microsecond.
    pub const BITS: u32 = 54;

    fn next(self) -> Self {
        Self((self.0 + 1) % (1 << Self::BITS))
    }
}

/// Which calls and outcomes do not change the state, so that a caller can skip the lock until the next
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FastPath {
    /// Every call and every outcome matters.
    None,
    /// All calls are admitted.
    Admit,
    /// All calls are admitted, and fast successes cannot open the breaker: it is enough to add their count
    /// before the next other outcome.
    CountSuccess,
    /// All calls are admitted, and one more fast success changes nothing.
    SkipSuccess,
    /// All calls are admitted, and no outcome changes anything.
    SkipAll,
}

/// The state machine of a breaker.
///
/// ```
/// use tidegate_overload::{BreakerSettings, BreakerState, Rejection, CallOutcome, breaker::BreakerMachine};
/// use tidegate_core::Micros;
///
/// let settings = BreakerSettings::builder().count_window(2).open_duration(Micros::from_secs(5)).build()?;
/// let mut breaker = BreakerMachine::new(settings);
/// for second in [0, 1] {
///     let (now, random, took) = (Micros::from_secs(second), 0.5, Micros::ZERO);
///     let generation = breaker.try_acquire(now, random).unwrap();
///     breaker.record(generation, CallOutcome::Failure, took, now, random);
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
    /// How often it opened since it was last closed, and the last open time before jitter.
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

/// A period of time. If the clock steps back before its start, the period restarts: it lasts its full
/// duration once, and ends even if the clock had been far ahead.
#[derive(Clone, Copy, Debug)]
struct StateTimer {
    start: Micros,
    duration: Micros,
}

impl StateTimer {
    fn remaining(&self, now: Micros) -> Micros {
        self.duration.saturating_sub(now.saturating_sub(self.start))
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

    /// Requests admission of a call. The caller must record the outcome of an admitted call exactly once.
    /// `random`, from 0 to 1, is the random input of the open time.
    pub fn try_acquire(&mut self, now: Micros, random: f64) -> Result<Generation, Rejection> {
        self.advance(now, random);
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

    /// Records the outcome and the duration of a call.
    pub fn record(&mut self, pass: Generation, report: CallOutcome, took: Micros, now: Micros, random: f64) {
        if pass != self.generation {
            return;
        }
        if report == CallOutcome::Ignored {
            if let BreakerMode::HalfOpen { free_probes: free, results, .. } = &mut self.mode {
                let slots = u64::from(self.settings.half_open_calls).saturating_sub(results.calls);
                *free = free.saturating_add(1).min(u32::try_from(slots).unwrap_or(u32::MAX));
            }
            return;
        }

        let outcome = PackedOutcome::new(report == CallOutcome::Failure, self.settings.is_slow(took));
        match &mut self.mode {
            BreakerMode::Closed => {
                let counts = self.window.record(now, outcome);
                if counts.calls >= self.settings.min_calls && self.settings.is_threshold_reached(counts) {
                    self.open(counts, now, random);
                }
            }
            BreakerMode::MetricsOnly => {
                self.window.record(now, outcome);
            }
            BreakerMode::HalfOpen { results, .. } => {
                results.add(outcome);
                let results = *results;
                if results.calls >= self.settings.quorum() {
                    self.evaluate_probes(results, now, random);
                }
            }
            BreakerMode::Open { .. } | BreakerMode::ForcedOpen | BreakerMode::Disabled => {}
        }
    }

    /// Records `calls` fast successes that were counted by the fast path
    /// [`CountSuccess`](FastPath::CountSuccess) in this generation.
    pub fn record_successes(&mut self, calls: u64) {
        if matches!(self.mode, BreakerMode::Closed | BreakerMode::MetricsOnly) {
            self.window.record_successes(calls);
        }
    }

    /// Closes the breaker manually and clears the window.
    pub fn close(&mut self) {
        self.window.clear();
        self.attempts = 0;
        self.open_time = None;
        self.set_mode(BreakerMode::Closed);
    }

    /// Opens the breaker manually for this time, as if by failures; it does not affect the backoff of later
    /// open times.
    pub fn open_for(&mut self, now: Micros, time: Micros) {
        let span = StateTimer { start: now, duration: time.max(Micros::new(1)) };
        self.set_mode(BreakerMode::Open { span, counts: CallCounts::default() });
    }

    /// Opens the breaker until it is changed manually.
    pub fn force_open(&mut self) {
        self.set_mode(BreakerMode::ForcedOpen);
    }

    /// Admits all calls and records nothing, until it is changed manually.
    pub fn disable(&mut self) {
        self.set_mode(BreakerMode::Disabled);
    }

    /// Admits and records all calls, from an empty window, until it is changed manually.
    pub fn set_metrics_only(&mut self) {
        self.window.clear();
        self.set_mode(BreakerMode::MetricsOnly);
    }

    /// The fast path that is valid now.
    pub fn fast_path(&self) -> FastPath {
        match self.mode {
            BreakerMode::Closed | BreakerMode::MetricsOnly => self.window.fast_path(),
            BreakerMode::Disabled => FastPath::SkipAll,
            BreakerMode::Open { .. } | BreakerMode::HalfOpen { .. } | BreakerMode::ForcedOpen => {
                FastPath::None
            }
        }
    }

    /// Whether no outcome could open the breaker now and the window does not depend on time: then the time of
    /// an outcome and its random number do not matter.
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

    /// The state. An open breaker stays open until the next call, even if the open time has passed.
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

    /// All numbers at `now`.
    pub fn snapshot(&self, now: Micros) -> BreakerSnapshot {
        let (counts, needed, remaining) = match &self.mode {
            BreakerMode::Closed | BreakerMode::MetricsOnly => {
                (self.window.counts(now), self.settings.min_calls, None)
            }
            BreakerMode::Open { span, counts } => (*counts, 1, Some(span.remaining(now))),
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

    /// Moves to the next state if the current one has lasted its time.
    fn advance(&mut self, now: Micros, random: f64) {
        let (BreakerMode::Open { span, .. } | BreakerMode::HalfOpen { span, .. }) = &mut self.mode else {
            return;
        };
        if !span.is_elapsed(now) {
            return;
        }
        match self.mode {
            BreakerMode::Open { .. } => self.enter_half_open(now),
            _ => self.evaluate_expired_probes(now, random),
        }
    }

    fn enter_half_open(&mut self, now: Micros) {
        let span = StateTimer { start: now, duration: self.settings.deadline };
        self.set_mode(BreakerMode::HalfOpen {
            span,
            free_probes: self.settings.half_open_calls,
            results: CallCounts::default(),
        });
    }

    /// Evaluates the probes at the deadline: those without an outcome count as failed and slow.
    fn evaluate_expired_probes(&mut self, now: Micros, random: f64) {
        let BreakerMode::HalfOpen { free_probes: free, mut results, .. } = self.mode else { return };
        if results.calls == 0 {
            return self.open(results, now, random);
        }
        let missing =
            u64::from(self.settings.half_open_calls.saturating_sub(free)).saturating_sub(results.calls);
        results.calls += missing;
        results.failures += missing;
        results.slow += missing;
        self.evaluate_probes(results, now, random);
    }

    fn evaluate_probes(&mut self, results: CallCounts, now: Micros, random: f64) {
        match self.settings.is_threshold_reached(results) {
            true => self.open(results, now, random),
            false => self.close(),
        }
    }

    fn open(&mut self, counts: CallCounts, now: Micros, random: f64) {
        let open_time = self.settings.next_open_time(self.open_time);
        self.attempts = self.attempts.saturating_add(1);
        self.open_time = Some(open_time);
        let span = StateTimer { start: now, duration: self.settings.apply_jitter(open_time, random) };
        self.set_mode(BreakerMode::Open { span, counts });
    }

    fn set_mode(&mut self, mode: BreakerMode) {
        self.mode = mode;
        self.generation = self.generation.next();
    }
}
