//! A breaker shared by threads.
//!
//! The state machine is behind a lock. An atomic word beside it contains the generation and the fast path:
//!
//! ```text
//!   63           10 9         3 2         0
//!   ┌──────────────┬───────────┬───────────┐   0  take the lock
//!   │  generation  │ successes │ fast path │   1  admit all
//!   └──────────────┴───────────┴───────────┘   2  admit all, count successes here
//!                                              3  admit all, a success changes nothing
//!                                              4  admit all, record nothing
//! ```
//!
//! A successful call takes a load and a compare-exchange without a lock or a clock, and only two loads if the window has
//! no failures: then threads do not contend at all. The fast path is written only under the lock. The lock holder first
//! moves the counted successes into the machine and stops the counting, so that all calls stay in order.

use crate::{
    BreakerSettings, BreakerSnapshot, BreakerState, CallOutcome, Rejection,
    breaker::{self, FastPath, Generation},
    call_guard::{CallGuard, RecordOutcome},
};
use std::{fmt, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{
    Clock,
    sync::{AtomicU64, Mutex, Ordering, lock},
};

/// A circuit breaker: while too many calls fail or are slow, it rejects all calls except a few probes.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::{Breaker, BreakerSettings, BreakerState, CallGuard};
/// use tidegate_limiter::Clock;
///
/// let (clock, manual_clock) = Clock::manual();
/// let settings = BreakerSettings::builder()
///     .count_window(10)
///     .min_calls(2)
///     .open_duration(Duration::from_secs(5))
///     .half_open_calls(1)
///     .build()?;
/// let breaker = Breaker::with_clock(settings, clock);
///
/// breaker.try_acquire()?.fail();
/// breaker.try_acquire()?.fail();
/// let rejection = breaker.try_acquire().unwrap_err();
/// assert_eq!(rejection.retry_after(), Some(Duration::from_secs(5).into()));
///
/// manual_clock.advance(Duration::from_secs(5));
/// let probe = breaker.try_acquire()?;
/// assert!(breaker.try_acquire().is_err());
/// probe.succeed();
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Share it by reference or in an `Arc`. [`CallGuard`] documents admission, [`crate::CallPermit`] how to
/// record outcomes.
pub struct Breaker {
    word: AtomicU64,
    settings: BreakerSettings,
    machine: Mutex<breaker::BreakerMachine>,
    clock: Clock,
}

/// The data about a call that a breaker needs when it ends.
#[derive(Debug)]
pub struct BreakerEntry {
    generation: Generation,
    /// When it started, if calls are timed.
    started_at: Micros,
}

impl Breaker {
    /// Creates a closed breaker on the system clock.
    pub fn new(settings: BreakerSettings) -> Self {
        Self::with_clock(settings, Clock::default())
    }

    /// Creates a closed breaker on this clock.
    pub fn with_clock(settings: BreakerSettings, clock: Clock) -> Self {
        let machine = breaker::BreakerMachine::new(settings.clone());
        let word = encode_word(machine.generation(), encode_fast_path(&machine));
        Self { word: AtomicU64::new(word), settings, machine: Mutex::new(machine), clock }
    }

    /// Closes the breaker from any other state, and clears the window.
    pub fn close(&self) {
        self.update(breaker::BreakerMachine::close);
    }

    /// Opens the breaker for this time, after which probes decide.
    pub fn open_for(&self, time: Duration) {
        self.update_now(|machine, now| machine.open_for(now, time.into()));
    }

    /// Opens the breaker until it is closed manually.
    pub fn force_open(&self) {
        self.update(breaker::BreakerMachine::force_open);
    }

    /// Admits all calls and records nothing.
    pub fn disable(&self) {
        self.update(breaker::BreakerMachine::disable);
    }

    /// Admits and records all calls.
    pub fn set_metrics_only(&self) {
        self.update(breaker::BreakerMachine::set_metrics_only);
    }

    /// The state. An open breaker stays open until the next call, even if the open time has passed.
    pub fn state(&self) -> BreakerState {
        lock(&self.machine).state()
    }

    /// All numbers at the current time.
    pub fn snapshot(&self) -> BreakerSnapshot {
        self.update_now(|machine, now| machine.snapshot(now))
    }

    /// The settings.
    pub fn settings(&self) -> &BreakerSettings {
        &self.settings
    }

    /// Not inlined, so that the fast path stays small.
    #[inline(never)]
    fn acquire_slow(&self) -> Result<Generation, Rejection> {
        self.update_now(|machine, now| machine.try_acquire(now, self.sample_jitter()))
    }

    #[inline(never)]
    fn record_slow(&self, generation: Generation, report: CallOutcome, took: Micros) {
        self.update(|machine| {
            // With a count window, the time matters only to an outcome that may open the breaker.
            let (now, random) = match machine.is_time_independent() {
                true => (Micros::ZERO, 0.5),
                false => (self.clock.now(), self.sample_jitter()),
            };
            machine.record(generation, report, took, now, random);
        });
    }

    #[inline(never)]
    fn record_timed(&self, entry: &BreakerEntry, report: CallOutcome) {
        let took = self.clock.now().saturating_sub(entry.started_at);
        if self.try_record_fast(entry.generation, report, self.settings.is_slow(took))
            == FastRecord::NeedsLock
        {
            self.record_slow(entry.generation, report, took);
        }
    }

    /// Changes the machine at the current time. The clock is read under the lock, so that it does not step
    /// back.
    fn update_now<R>(&self, change: impl FnOnce(&mut breaker::BreakerMachine, Micros) -> R) -> R {
        self.update(|machine| change(machine, self.clock.now()))
    }

    /// Changes the machine and updates the word.
    #[inline]
    fn update<R>(&self, change: impl FnOnce(&mut breaker::BreakerMachine) -> R) -> R {
        let mut machine = lock(&self.machine);
        if self.word.load(Ordering::Relaxed) & FAST_PATH_MASK == COUNT_SUCCESS {
            let counting = self.word.swap(encode_word(machine.generation(), ADMIT), Ordering::AcqRel);
            machine.record_successes((counting & SUCCESS_MASK) / SUCCESS_UNIT);
        }
        let result = change(&mut machine);
        let word = encode_word(machine.generation(), encode_fast_path(&machine));
        if word != self.word.load(Ordering::Relaxed) {
            self.word.store(word, Ordering::Release);
        }
        result
    }

    /// Records by the word alone, if the fast path allows.
    #[inline]
    fn try_record_fast(&self, generation: Generation, report: CallOutcome, is_slow: bool) -> FastRecord {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            if decode_generation(word) != generation {
                return FastRecord::Recorded;
            }
            match (word & FAST_PATH_MASK, report) {
                (NONE, _) => return FastRecord::NeedsLock,
                (SKIP_ALL, _) | (_, CallOutcome::Ignored) => return FastRecord::Recorded,
                (SKIP_SUCCESS, CallOutcome::Success) if !is_slow => return FastRecord::Recorded,
                (COUNT_SUCCESS, CallOutcome::Success) if !is_slow && word & SUCCESS_MASK != SUCCESS_MASK => {}
                _ => return FastRecord::NeedsLock,
            }
            let counted = word + SUCCESS_UNIT;
            match self.word.compare_exchange_weak(word, counted, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return FastRecord::Recorded,
                Err(other) => word = other,
            }
        }
    }

    fn sample_jitter(&self) -> f64 {
        if self.settings.is_jittered() { fastrand::f64() } else { 0.5 }
    }
}

impl CallGuard for Breaker {
    #[inline]
    fn admit(&self) -> Result<BreakerEntry, Rejection> {
        let word = self.word.load(Ordering::Acquire);
        let generation = match word & FAST_PATH_MASK {
            NONE => self.acquire_slow()?,
            _ => decode_generation(word),
        };
        let started_at = if self.settings.is_timed() { self.clock.now() } else { Micros::ZERO };
        Ok(BreakerEntry { generation, started_at })
    }
}

impl RecordOutcome for Breaker {
    type Entry = BreakerEntry;

    #[inline]
    fn record(&self, entry: BreakerEntry, report: CallOutcome) {
        if self.settings.is_timed() {
            return self.record_timed(&entry, report);
        }
        if self.try_record_fast(entry.generation, report, false) == FastRecord::NeedsLock {
            self.record_slow(entry.generation, report, Micros::ZERO);
        }
    }
}

impl fmt::Debug for Breaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Breaker({}, {:?})", self.state(), self.clock)
    }
}

/// Whether an outcome is recorded, or needs the lock.
#[derive(PartialEq)]
enum FastRecord {
    Recorded,
    NeedsLock,
}

/// The lowest bits of the word: the fast path.
const FAST_PATH_MASK: u64 = 7;
const NONE: u64 = 0;
const ADMIT: u64 = 1;
const COUNT_SUCCESS: u64 = 2;
const SKIP_SUCCESS: u64 = 3;
const SKIP_ALL: u64 = 4;
/// The bits above count successes: the unit and the maximum. One more takes the lock, which computes the fast
/// path again.
const SUCCESS_UNIT: u64 = FAST_PATH_MASK + 1;
const SUCCESS_MASK: u64 = (1 << GENERATION_SHIFT) - SUCCESS_UNIT;
/// The remaining bits are the generation.
const GENERATION_SHIFT: u32 = u64::BITS - Generation::BITS;

fn encode_fast_path(machine: &breaker::BreakerMachine) -> u64 {
    match machine.fast_path() {
        FastPath::None => NONE,
        FastPath::Admit => ADMIT,
        FastPath::CountSuccess => COUNT_SUCCESS,
        FastPath::SkipSuccess => SKIP_SUCCESS,
        FastPath::SkipAll => SKIP_ALL,
    }
}

fn encode_word(generation: Generation, fast_path: u64) -> u64 {
    generation.0 << GENERATION_SHIFT | fast_path
}

#[inline]
fn decode_generation(word: u64) -> Generation {
    Generation(word >> GENERATION_SHIFT)
}
