//! A breaker that threads share.
//!
//! The state machine sits behind a lock. Beside it, one word says which generation it is and what need not be told:
//!
//! ```text
//!   63           10 9        3 2    0
//!   ┌──────────────┬──────────┬──────┐   0  ask and tell
//!   │  generation  │ counted  │leeway│   1  all pass
//!   └──────────────┴──────────┴──────┘   2  all pass, successes are counted here
//!                                        3  all pass, a success changes nothing
//!                                        4  all pass, nothing is recorded
//! ```
//!
//! So a call that goes well takes a load and a swap without a lock or a clock, and two loads if the last calls all
//! went well: then threads do not get in each other's way at all. The leeway is written under the lock only. Whoever
//! holds it first takes over what was counted and stops the counting, so that all calls keep their order.

use crate::{
    BreakerSettings, BreakerSnapshot, BreakerState, Rejection, Report,
    breaker::{self, Generation, Leeway},
    guard::{Guard, Settle},
};
use std::{fmt, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{
    Clock,
    sync::{AtomicU64, Mutex, Ordering, lock},
};

/// A circuit breaker: while too many calls fail or are slow, it lets none through but a few probes.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{Breaker, BreakerSettings, BreakerState, Guard};
/// use tidegate_limiter::Clock;
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
/// assert_eq!(breaker.state(), BreakerState::FailClosed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Share it by reference or in an `Arc`; see [`Guard`] for how to ask, and [`crate::Pass`] for how to report.
pub struct Breaker {
    word: AtomicU64,
    settings: BreakerSettings,
    machine: Mutex<breaker::BreakerMachine>,
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
        let machine = breaker::BreakerMachine::new(settings.clone());
        let word = word_of(machine.generation(), leeway_of(&machine));
        Self { word: AtomicU64::new(word), settings, machine: Mutex::new(machine), clock }
    }

    /// Closes it, with nothing recorded. The way back from every other state.
    pub fn close(&self) {
        self.change(breaker::BreakerMachine::close);
    }

    /// Opens it for so long, after which probes decide.
    pub fn open_for(&self, time: Duration) {
        self.with(|machine, now| machine.open_for(now, time.into()));
    }

    /// Opens it until a hand closes it.
    pub fn force_open(&self) {
        self.change(breaker::BreakerMachine::force_open);
    }

    /// Lets all calls through and records nothing.
    pub fn disable(&self) {
        self.change(breaker::BreakerMachine::disable);
    }

    /// Lets all calls through and records them.
    pub fn metrics_only(&self) {
        self.change(breaker::BreakerMachine::metrics_only);
    }

    /// What it does with calls. An open breaker is open until somebody asks.
    pub fn state(&self) -> BreakerState {
        lock(&self.machine).state()
    }

    /// All its numbers at this moment.
    pub fn snapshot(&self) -> BreakerSnapshot {
        self.with(|machine, now| machine.snapshot(now))
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

    #[inline(never)]
    fn settle_timed(&self, entry: &BreakerEntry, report: Report) {
        let took = self.clock.now().since(entry.began);
        if self.tell_briefly(entry.generation, report, self.settings.is_slow(took)) == Told::No {
            self.tell(entry.generation, report, took);
        }
    }

    /// Changes the machine at the time that it is. The clock is read under the lock, so that it does not step back.
    fn with<R>(&self, change: impl FnOnce(&mut breaker::BreakerMachine, Micros) -> R) -> R {
        self.change(|machine| change(machine, self.clock.now()))
    }

    /// Changes the machine, and the word with it.
    #[inline]
    fn change<R>(&self, change: impl FnOnce(&mut breaker::BreakerMachine) -> R) -> R {
        let mut machine = lock(&self.machine);
        if self.word.load(Ordering::Relaxed) & LEEWAY == PASS_AND_COUNT {
            let counting = self.word.swap(word_of(machine.generation(), PASS), Ordering::AcqRel);
            machine.succeed((counting & COUNTED) / ONE);
        }
        let result = change(&mut machine);
        let word = word_of(machine.generation(), leeway_of(&machine));
        if word != self.word.load(Ordering::Relaxed) {
            self.word.store(word, Ordering::Release);
        }
        result
    }

    /// Reports by the word alone, if its leeway allows.
    #[inline]
    fn tell_briefly(&self, generation: Generation, report: Report, is_slow: bool) -> Told {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if generation_of(word) != generation {
                return Told::Yes;
            }
            match (word & LEEWAY, report) {
                (NONE, _) => return Told::No,
                (EVERYTHING, _) | (_, Report::Ignored) => return Told::Yes,
                (PASS_AND_SUCCEED, Report::Success) if !is_slow => return Told::Yes,
                (PASS_AND_COUNT, Report::Success) if !is_slow && word & COUNTED != COUNTED => {}
                _ => return Told::No,
            }
            let counted = word + ONE;
            match self.word.compare_exchange_weak(word, counted, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Told::Yes,
                Err(other) => word = other,
            }
        }
    }

    fn roll(&self) -> f64 {
        if self.settings.is_jittered() { fastrand::f64() } else { 0.5 }
    }
}

impl Guard for Breaker {
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
}

impl Settle for Breaker {
    type Entry = BreakerEntry;

    #[inline]
    fn settle(&self, entry: BreakerEntry, report: Report) {
        if self.settings.watches_time() {
            return self.settle_timed(&entry, report);
        }
        if self.tell_briefly(entry.generation, report, false) == Told::No {
            self.tell(entry.generation, report, Micros::ZERO);
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Breaker({}, {:?})", self.state(), self.clock)
    }
}

/// Whether a report has reached the machine, or need not.
#[derive(PartialEq)]
enum Told {
    Yes,
    No,
}

/// The lowest bits of the word, and what they say.
const LEEWAY: u64 = 7;
const NONE: u64 = 0;
const PASS: u64 = 1;
const PASS_AND_COUNT: u64 = 2;
const PASS_AND_SUCCEED: u64 = 3;
const EVERYTHING: u64 = 4;
/// The bits above them count successes: one, and the most. The next one takes the lock, and finds out whether all is
/// well again.
const ONE: u64 = LEEWAY + 1;
const COUNTED: u64 = (1 << SHIFT) - ONE;
/// The rest is the generation.
const SHIFT: u32 = u64::BITS - Generation::BITS;

fn leeway_of(machine: &breaker::BreakerMachine) -> u64 {
    match machine.leeway() {
        Leeway::None => NONE,
        Leeway::Pass => PASS,
        Leeway::PassAndCount => PASS_AND_COUNT,
        Leeway::PassAndSucceed => PASS_AND_SUCCEED,
        Leeway::Everything => EVERYTHING,
    }
}

fn word_of(generation: Generation, leeway: u64) -> u64 {
    generation.0 << SHIFT | leeway
}

#[inline]
fn generation_of(word: u64) -> Generation {
    Generation(word >> SHIFT)
}
