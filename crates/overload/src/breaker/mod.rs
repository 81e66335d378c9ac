//! A circuit breaker: calls that would fail anyway are not made.
//!
//! ```text
//!               rate ≥ threshold             open time over
//!      CLOSED ───────────────────────▶ OPEN ────────────────▶ HALF_MILLISECOND-OPEN
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

use crate::{rejection::Rejection, report::Report};
use tidegate_core::{Micros, Percent};
use window::{Outcome, Window};

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
pub enum Leeway {
    /// Every question and every report counts.
    None,
    /// All pass.
    Pass,
    /// All pass, and quick successes open nothing: it is enough to hand in their number before anything else is told.
    PassAndCount,
    /// All pass, and one more quick success changes nothing.
    PassAndSucceed,
    /// All pass, and no report changes anything.
    Everything,
}

/// The state of a breaker.
///
/// ```
/// use tidegate_overload::{BreakerSettings, BreakerState, Rejection, Report, breaker::BreakerMachine};
/// use tidegate_core::Micros;
///
/// let settings = BreakerSettings::builder().over_calls(2).open_for(Micros::from_secs(5)).build()?;
/// let mut breaker = BreakerMachine::new(settings);
/// for second in [0, 1] {
///     let (now, roll, took) = (Micros::from_secs(second), 0.5, Micros::ZERO);
///     let pass = breaker.try_pass(now, roll).unwrap();
///     breaker.report(pass, Report::Failure, took, now, roll);
/// }
/// let wait = Micros::from_secs(3);
/// assert_eq!(breaker.try_pass(Micros::from_secs(3), 0.5), Err(Rejection::OpenEpisode(wait)));
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BreakerMachine {
    settings: BreakerSettings,
    mode: Mode,
    generation: Generation,
    window: Window,
    rejected: u64,
    /// How often it opened since it was closed, and for how long last time, before chance had its say.
    attempts: u32,
    open_time: Option<f64>,
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Closed,
    Open { span: Span, because: CallCounts },
    HalfOpen { span: Span, free: u32, results: CallCounts },
    ForcedOpen,
    Disabled,
    MetricsOnly,
}

/// A stretch of time. A clock that steps back before its start begins it anew, so that it is seen in full once and
/// ends even if the clock had been far ahead by mistake.
#[derive(Clone, Copy, Debug)]
struct Span {
    since: Micros,
    lasts: Micros,
}

impl Span {
    fn left(&self, now: Micros) -> Micros {
        self.lasts.since(now.since(self.since))
    }

    fn is_over(&mut self, now: Micros) -> bool {
        self.since = self.since.min(now);
        self.left(now) == Micros::ZERO
    }
}

impl BreakerMachine {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        let window = Window::new(&settings);
        let mode = Mode::Closed;
        Self { settings, mode, generation: Generation(0), window, rejected: 0, attempts: 0, open_time: None }
    }

    /// Asks to make a call. Whoever passes reports exactly once how it ended. The roll, from 0 to 1, spreads the
    /// open time.
    pub fn try_pass(&mut self, now: Micros, roll: f64) -> Result<Generation, Rejection> {
        self.advance(now, roll);
        let rejection = match &mut self.mode {
            Mode::Closed | Mode::Disabled | Mode::MetricsOnly => return Ok(self.generation),
            Mode::HalfOpen { free, .. } if *free > 0 => {
                *free -= 1;
                return Ok(self.generation);
            }
            Mode::HalfOpen { span, .. } => Rejection::Probing(span.left(now)),
            Mode::Open { span, .. } => Rejection::Open(span.left(now)),
            Mode::ForcedOpen => Rejection::ForcedOpen,
        };
        self.rejected = self.rejected.saturating_add(1);
        Err(rejection)
    }

    /// Tells how a call ended and how long it took.
    pub fn report(&mut self, pass: Generation, report: Report, took: Micros, now: Micros, roll: f64) {
        if pass != self.generation {
            return;
        }
        if report == Report::Ignored {
            if let Mode::HalfOpen { free, results, .. } = &mut self.mode {
                let places = u64::from(self.settings.probes).saturating_sub(results.calls);
                *free = free.saturating_add(1).min(u32::try_from(places).unwrap_or(u32::MAX));
            }
            return;
        }

        let outcome = Outcome::new(report == Report::Failure, self.settings.is_slow(took));
        match &mut self.mode {
            Mode::Closed => {
                let counts = self.window.record(now, outcome);
                if counts.calls >= self.settings.min_calls && self.settings.is_reached(counts) {
                    self.open(counts, now, roll);
                }
            }
            Mode::MetricsOnly => {
                self.window.record(now, outcome);
            }
            Mode::HalfOpen { results, .. } => {
                results.add(outcome);
                let results = *results;
                if results.calls >= self.settings.quorum() {
                    self.judge(results, now, roll);
                }
            }
            Mode::Open { .. } | Mode::ForcedOpen | Mode::Disabled => {}
        }
    }

    /// Records so many quick successes at once, that were counted by the leeway of
    /// [`PassAndCount`](Leeway::PassAndCount) in this generation.
    pub fn succeed(&mut self, calls: u64) {
        if matches!(self.mode, Mode::Closed | Mode::MetricsOnly) {
            self.window.succeed(calls);
        }
    }

    /// Closes it by hand, with nothing recorded.
    pub fn close(&mut self) {
        self.window.clear();
        self.attempts = 0;
        self.open_time = None;
        self.change(Mode::Closed);
    }

    /// Opens it by hand for so long, as if it had opened by itself; later open times do not grow because of it.
    pub fn open_for(&mut self, now: Micros, time: Micros) {
        let span = Span { since: now, lasts: time.max(Micros::new(1)) };
        self.change(Mode::Open { span, because: CallCounts::default() });
    }

    /// Opens it by hand, until a hand changes that.
    pub fn force_open(&mut self) {
        self.change(Mode::ForcedOpen);
    }

    /// Lets all calls pass and records nothing, until a hand changes that.
    pub fn disable(&mut self) {
        self.change(Mode::Disabled);
    }

    /// Lets all calls pass and records them, starting from nothing, until a hand changes that.
    pub fn metrics_only(&mut self) {
        self.window.clear();
        self.change(Mode::MetricsOnly);
    }

    /// What would change nothing now.
    pub fn leeway(&self) -> Leeway {
        match self.mode {
            Mode::Closed | Mode::MetricsOnly => self.window.leeway(),
            Mode::Disabled => Leeway::Everything,
            Mode::Open { .. } | Mode::HalfOpen { .. } | Mode::ForcedOpen => Leeway::None,
        }
    }

    /// Whether no report could open it now, and none is counted by time: then the time of a report, and its roll,
    /// do not matter.
    pub fn is_timeless(&self) -> bool {
        match self.mode {
            Mode::Closed | Mode::MetricsOnly => match self.window.at_worst() {
                Some(counts) => counts.calls < self.settings.min_calls || !self.settings.is_reached(counts),
                None => false,
            },
            Mode::Disabled | Mode::ForcedOpen | Mode::Open { .. } => true,
            Mode::HalfOpen { .. } => false,
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
            Mode::Closed => BreakerState::Closed,
            Mode::Open { .. } => BreakerState::Open,
            Mode::HalfOpen { .. } => BreakerState::HalfOpen,
            Mode::ForcedOpen => BreakerState::ForcedOpen,
            Mode::Disabled => BreakerState::Disabled,
            Mode::MetricsOnly => BreakerState::MetricsOnly,
        }
    }

    /// All numbers at once.
    pub fn snapshot(&self, now: Micros) -> BreakerSnapshot {
        let (counts, needed, remaining) = match &self.mode {
            Mode::Closed | Mode::MetricsOnly => (self.window.counts(now), self.settings.min_calls, None),
            Mode::Open { span, because } => (*because, 1, Some(span.left(now))),
            Mode::HalfOpen { span, results, .. } => (*results, self.settings.quorum(), Some(span.left(now))),
            Mode::ForcedOpen | Mode::Disabled => (CallCounts::default(), 1, None),
        };
        let rate = |part| (counts.calls >= needed).then(|| Percent::from_ratio(part, counts.calls));
        BreakerSnapshot {
            state: self.state(),
            generation: self.generation.0,
            counts,
            failure_rate: rate(counts.failures),
            slow_rate: rate(counts.slow).filter(|_| self.settings.watches_time()),
            rejected: self.rejected,
            attempts: self.attempts,
            remaining,
        }
    }

    /// Goes on to the next state if this one has lasted its time.
    fn advance(&mut self, now: Micros, roll: f64) {
        let (Mode::Open { span, .. } | Mode::HalfOpen { span, .. }) = &mut self.mode else { return };
        if !span.is_over(now) {
            return;
        }
        match self.mode {
            Mode::Open { .. } => self.half_open(now),
            _ => self.judge_late(now, roll),
        }
    }

    fn half_open(&mut self, now: Micros) {
        let span = Span { since: now, lasts: self.settings.deadline };
        self.change(Mode::HalfOpen { span, free: self.settings.probes, results: CallCounts::default() });
    }

    /// The deadline is over: those that have not answered count as failed and slow.
    fn judge_late(&mut self, now: Micros, roll: f64) {
        let Mode::HalfOpen { free, mut results, .. } = self.mode else { return };
        if results.calls == 0 {
            return self.open(results, now, roll);
        }
        let missing = u64::from(self.settings.probes.saturating_sub(free)).saturating_sub(results.calls);
        results.calls += missing;
        results.failures += missing;
        results.slow += missing;
        self.judge(results, now, roll);
    }

    fn judge(&mut self, results: CallCounts, now: Micros, roll: f64) {
        match self.settings.is_reached(results) {
            true => self.open(results, now, roll),
            false => self.close(),
        }
    }

    fn open(&mut self, because: CallCounts, now: Micros, roll: f64) {
        let open_time = self.settings.open_time(self.open_time);
        self.attempts = self.attempts.saturating_add(1);
        self.open_time = Some(open_time);
        let span = Span { since: now, lasts: self.settings.spread(open_time, roll) };
        self.change(Mode::Open { span, because });
    }

    fn change(&mut self, mode: Mode) {
        self.mode = mode;
        self.generation = self.generation.next();
    }
}
