//! A breaker that threads share.
//!
//! The state machine sits behind a lock. Beside it, one word says which generation it is and what would change
//! nothing in it:
//!
//! ```text
//!   63                                2 1 0
//!   ┌──────────────────────────────────┬───┐   0  ask and tell
//!   │            generation            │   │   1  all pass
//!   └──────────────────────────────────┴───┘   2  all pass, a success changes nothing
//!                                              3  all pass, nothing is recorded
//! ```
//!
//! So a call that goes well through a breaker whose last calls all went well takes two loads, no lock and no clock,
//! and threads do not get in each other's way. The word is written under the lock, before anybody learns what was
//! decided there.

#[cfg(all(test, loom))]
mod loom;

use crate::{
    clock::Clock,
    controller::Controller,
    sync::{AtomicU64, Mutex, Ordering, lock},
};
use std::{fmt, time::Duration};
use tidegate_core::{
    BreakerSettings, BreakerSnapshot, BreakerState, Micros, Rejection, Report,
    breaker::{self, Generation, Leeway},
};

/// A circuit breaker: while too many calls fail or are slow, it lets none through but a few probes.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{BreakerSettings, BreakerState};
/// use tidegate_engine::{Breaker, Clock, Controller};
///
/// let (clock, hand) = Clock::manual();
/// let settings = BreakerSettings::builder()
///     .over_calls(10)
///     .min_calls(2)
///     .open_for(Duration::from_secs(5))
///     .probes(1)
///     .build()?;
/// let breaker = Breaker::with_clock(settings, clock);
///
/// breaker.try_pass()?.fail();
/// breaker.try_pass()?.fail();
/// let rejection = breaker.try_pass().unwrap_err();
/// assert_eq!(rejection.retry_after(), Some(Duration::from_secs(5).into()));
///
/// hand.advance(Duration::from_secs(5));
/// let probe = breaker.try_pass()?;
/// assert!(breaker.try_pass().is_err());
/// probe.succeed();
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Share it by reference or in an `Arc`; see [`Controller`] for how to ask, and [`crate::Pass`] for how to report.
pub struct Breaker {
    word: AtomicU64,
    settings: BreakerSettings,
    machine: Mutex<breaker::Breaker>,
    clock: Clock,
}

/// What a breaker must know of a call when it ends.
#[derive(Debug)]
pub struct BreakerEntry {
    generation: Generation,
    /// When it began, if that matters.
    began: Micros,
}

impl Breaker {
    /// A closed breaker on the machine's clock.
    pub fn new(settings: BreakerSettings) -> Self {
        Self::with_clock(settings, Clock::default())
    }

    /// A closed breaker on this clock.
    pub fn with_clock(settings: BreakerSettings, clock: Clock) -> Self {
        let machine = breaker::Breaker::new(settings.clone());
        Self { word: AtomicU64::new(word_of(&machine)), settings, machine: Mutex::new(machine), clock }
    }

    /// Closes it, with nothing recorded. The way back from every other state.
    pub fn close(&self) {
        self.change(breaker::Breaker::close);
    }

    /// Opens it for so long, after which probes decide.
    pub fn open_for(&self, time: Duration) {
        self.with(|machine, now| machine.open_for(now, time.into()));
    }

    /// Opens it until a hand closes it.
    pub fn force_open(&self) {
        self.change(breaker::Breaker::force_open);
    }

    /// Lets all calls through and records nothing.
    pub fn disable(&self) {
        self.change(breaker::Breaker::disable);
    }

    /// Lets all calls through and records them.
    pub fn metrics_only(&self) {
        self.change(breaker::Breaker::metrics_only);
    }

    /// What it does with calls. An open breaker is open until somebody asks.
    pub fn state(&self) -> BreakerState {
        lock(&self.machine).state()
    }

    /// All its numbers at this moment.
    pub fn snapshot(&self) -> BreakerSnapshot {
        let machine = lock(&self.machine);
        machine.snapshot(self.clock.now())
    }

    /// The settings.
    pub fn settings(&self) -> &BreakerSettings {
        &self.settings
    }

    /// Kept out of line, so that the common case stays small.
    #[inline(never)]
    fn ask(&self) -> Result<Generation, Rejection> {
        self.with(|machine, now| machine.try_pass(now, self.roll()))
    }

    #[inline(never)]
    fn tell(&self, generation: Generation, report: Report, took: Micros) {
        self.change(|machine| {
            // In a window of calls the time matters only to a report that may open the breaker.
            let (now, roll) = match machine.is_timeless() {
                true => (Micros::ZERO, 0.5),
                false => (self.clock.now(), self.roll()),
            };
            machine.report(generation, report, took, now, roll);
        });
    }

    /// Changes the machine at the time that it is. The clock is read under the lock, so that it does not step back.
    fn with<R>(&self, change: impl FnOnce(&mut breaker::Breaker, Micros) -> R) -> R {
        self.change(|machine| change(machine, self.clock.now()))
    }

    /// Changes the machine, and the word with it.
    #[inline]
    fn change<R>(&self, change: impl FnOnce(&mut breaker::Breaker) -> R) -> R {
        let mut machine = lock(&self.machine);
        let result = change(&mut machine);
        let word = word_of(&machine);
        if word != self.word.load(Ordering::Relaxed) {
            self.word.store(word, Ordering::Release);
        }
        result
    }

    fn roll(&self) -> f64 {
        if self.settings.is_jittered() { fastrand::f64() } else { 0.5 }
    }
}

impl Controller for Breaker {
    type Entry = BreakerEntry;

    #[inline]
    fn enter(&self) -> Result<BreakerEntry, Rejection> {
        let word = self.word.load(Ordering::Acquire);
        let generation = match word & LEEWAY {
            NONE => self.ask()?,
            _ => generation_of(word),
        };
        let began = if self.settings.watches_time() { self.clock.now() } else { Micros::ZERO };
        Ok(BreakerEntry { generation, began })
    }

    #[inline]
    fn settle(&self, entry: BreakerEntry, report: Report) {
        let took =
            if self.settings.watches_time() { self.clock.now().since(entry.began) } else { Micros::ZERO };
        let word = self.word.load(Ordering::Acquire);
        if generation_of(word) != entry.generation {
            return;
        }
        let changes = match (word & LEEWAY, report) {
            (NONE, _) => true,
            (EVERYTHING, _) | (_, Report::Ignored) => false,
            (PASS_AND_SUCCEED, Report::Success) => self.settings.is_slow(took),
            _ => true,
        };
        if changes {
            self.tell(entry.generation, report, took);
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Breaker({}, {:?})", self.state(), self.clock)
    }
}

/// The lowest bits of the word, and what they say.
const LEEWAY: u64 = 3;
const NONE: u64 = 0;
const PASS: u64 = 1;
const PASS_AND_SUCCEED: u64 = 2;
const EVERYTHING: u64 = 3;

fn word_of(machine: &breaker::Breaker) -> u64 {
    let leeway = match machine.leeway() {
        Leeway::None => NONE,
        Leeway::Pass => PASS,
        Leeway::PassAndSucceed => PASS_AND_SUCCEED,
        Leeway::Everything => EVERYTHING,
    };
    machine.generation().0 << 2 | leeway
}

#[inline]
fn generation_of(word: u64) -> Generation {
    Generation(word >> 2)
}
