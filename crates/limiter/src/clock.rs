//! What time it is: the only place that asks the machine.
//!
//! Every reading is in microseconds since the Unix epoch, so that windows can follow the calendar, and moves with
//! the machine's monotonic clock, so that a corrected wall clock moves nothing.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};
use tidegate_core::{Bound, Micros};

/// A clock: the machine's, a coarse one, tokio's, or one that a test moves by hand.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::{Clock, DirectLimiter};
///
/// let (clock, manual_clock) = Clock::manual();
/// let throttle = DirectLimiter::builder().clock(clock).build("1/s")?;
/// assert!(throttle.check().is_allowed());
/// assert!(!throttle.check().is_allowed());
/// manual_clock.advance(Duration::from_secs(1));
/// assert!(throttle.check().is_allowed());
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone)]
pub struct Clock {
    source: ClockSource,
}

#[derive(Clone)]
enum ClockSource {
    System(&'static SystemClock),
    Coarse(&'static CoarseClock),
    Manual(Arc<ManualClockState>),
    #[cfg(feature = "tokio")]
    Tokio(TokioClock),
}

impl Clock {
    /// The exact clock, and the default: the processor's cycle counter, tied to the operating system's monotonic
    /// clock a hundred times a second, so that it cannot drift. It never goes back.
    pub fn system() -> Self {
        Self { source: ClockSource::System(SystemClock::shared()) }
    }

    /// A clock that is read in a fraction of the time and shows it only every few milliseconds; [`Clock::resolution`]
    /// says how often, and [`crate::DirectLimiter::bound`] what that does to a bound. Where the operating system has none
    /// it is the exact clock.
    ///
    /// ```
    /// use tidegate_limiter::{Clock, DirectLimiter};
    ///
    /// let exact = DirectLimiter::new("1000/s burst 10")?;
    /// let coarse = DirectLimiter::builder().clock(Clock::coarse()).build("1000/s burst 10")?;
    /// println!("{}", coarse.bound()); // … 1014 in any 1s, by a clock that ticks every 4ms
    /// let window = std::time::Duration::from_secs(1).into();
    /// assert!(coarse.bound().max_in_window(window) >= exact.bound().max_in_window(window));
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    pub fn coarse() -> Self {
        match CoarseClock::shared() {
            Some(coarse) => Self { source: ClockSource::Coarse(coarse) },
            None => Self::system(),
        }
    }

    /// A clock that stands at zero until its hand moves it.
    pub fn manual() -> (Self, ManualClock) {
        let manual_clock =
            Arc::new(ManualClockState { now: AtomicU64::new(0), wakers: Mutex::new(Vec::new()) });
        (Self { source: ClockSource::Manual(manual_clock.clone()) }, ManualClock { state: manual_clock })
    }

    /// Tokio's clock, which a test can pause and advance. A limiter whose waits are to follow paused time is built
    /// with it.
    #[cfg(feature = "tokio")]
    pub fn tokio() -> Self {
        Self { source: ClockSource::Tokio(TokioClock::start()) }
    }

    /// Waits until it is `moment`: on tokio's timer, or for the hand of a manual clock.
    #[cfg(feature = "tokio")]
    pub async fn wait_until(&self, deadline: Micros) {
        crate::wait::WaitUntil::new(self, Some(deadline), None).await;
    }

    /// The moment on tokio's own clock that is so far from now, for timers that are set again.
    #[cfg(feature = "tokio")]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn tokio_deadline_after(left: Micros) -> tokio::time::Instant {
        tokio::time::Instant::now() + left.to_duration()
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Micros {
        Micros::new(self.micros())
    }

    /// The time as a bare number, for the path that must be short.
    #[inline(always)]
    pub(crate) fn micros(&self) -> u64 {
        match self.source {
            ClockSource::System(clock) => clock.now(),
            _ => self.micros_slow(),
        }
    }

    /// Kept out of line, so that the common clock is read without a detour.
    #[inline(never)]
    fn micros_slow(&self) -> u64 {
        match &self.source {
            ClockSource::System(clock) => clock.now(),
            ClockSource::Coarse(clock) => clock.now(),
            ClockSource::Manual(manual_clock) => manual_clock.now.load(Ordering::Acquire),
            #[cfg(feature = "tokio")]
            ClockSource::Tokio(clock) => clock.now(),
        }
    }

    /// The smallest step that a reading can show.
    pub fn resolution(&self) -> Micros {
        match &self.source {
            ClockSource::Coarse(clock) => clock.resolution,
            _ => Micros::new(1),
        }
    }

    /// A bound as it holds by this clock: what it cannot tell apart comes on top.
    #[doc(hidden)]
    pub fn widen_bound(&self, bound: Bound) -> Bound {
        match &self.source {
            ClockSource::Coarse(clock) => bound.with_clock_resolution(clock.resolution),
            _ => bound,
        }
    }

    /// The hand, if this clock is moved by hand: a wait must then watch the hand instead of a timer.
    pub(crate) fn manual_clock(&self) -> Option<ManualClock> {
        match &self.source {
            ClockSource::Manual(manual_clock) => Some(ManualClock { state: manual_clock.clone() }),
            _ => None,
        }
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.source {
            ClockSource::System(_) => "system",
            ClockSource::Coarse(_) => "coarse",
            ClockSource::Manual(_) => "manual",
            #[cfg(feature = "tokio")]
            ClockSource::Tokio(_) => "tokio",
        };
        write!(f, "Clock({name}, {})", self.now())
    }
}

/// Moves a manual clock. A hand that is turned back does nothing: the clock stands until time catches up.
#[derive(Clone)]
pub struct ManualClock {
    state: Arc<ManualClockState>,
}

struct ManualClockState {
    now: AtomicU64,
    wakers: Mutex<Vec<Waker>>,
}

impl ManualClock {
    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        let now = Micros::new(self.state.now.load(Ordering::Acquire));
        self.set(now.plus(by.into()));
    }

    /// Moves the clock to `time`, unless it is already past it.
    pub fn set(&self, time: Micros) {
        self.state.now.fetch_max(time.get(), Ordering::AcqRel);
        let sleepers = std::mem::take(&mut *self.lock_wakers());
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// Has `waker` woken at the next move.
    pub(crate) fn register_waker(&self, waker: &Waker) {
        let mut sleepers = self.lock_wakers();
        if !sleepers.iter().any(|sleeper| sleeper.will_wake(waker)) {
            sleepers.push(waker.clone());
        }
    }

    fn lock_wakers(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.state.wakers.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ManualClock({}us)", self.state.now.load(Ordering::Acquire))
    }
}

/// The cycle counter, scaled to microseconds, plus an offset that is corrected again and again.
///
/// How fast the counter ticks is known to some 30 millionths. It is taken to be slower than that, so that every
/// correction is a step ahead, of a microsecond or two.
struct SystemClock {
    counter: quanta::Clock,
    /// Microseconds per tick, in 2^-64.
    scale: u64,
    ticks_between_corrections: u64,
    /// What to add to the scaled counter; one word, so that a reader always sees a whole one.
    offset: AtomicU64,
    /// Ticks after which the offset is corrected again.
    next_correction: AtomicU64,
    start_instant: std::time::Instant,
    start_micros: u64,
}

const CORRECTIONS_PER_SECOND: u128 = 100;
/// The counter is taken to be slower by one part in this many.
const SLOWDOWN_DIVISOR: u128 = 10_000;
/// Shown too early by more than this many microseconds, the time is set back: the counter itself has jumped.
const MAX_AHEAD_US: u64 = 1_000;

impl SystemClock {
    fn shared() -> &'static Self {
        static SHARED: OnceLock<SystemClock> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn start() -> Self {
        let counter = quanta::Clock::new();
        let ticks = 1_u64 << 40;
        let nanos = counter.delta_as_nanos(0, ticks).max(1);
        // nanos / 2^40 / 1000 · 2^64, in an order that keeps the digits.
        let scale = (u128::from(nanos) << 24) / 1_000;
        let scale = scale - scale / SLOWDOWN_DIVISOR;
        let ticks_per_second = u128::from(ticks) * 1_000_000_000 / u128::from(nanos);
        let some = |ticks| u64::try_from(ticks).unwrap_or(u64::MAX);
        let clock = Self {
            counter,
            scale: some(scale),
            ticks_between_corrections: some(ticks_per_second / CORRECTIONS_PER_SECOND),
            offset: AtomicU64::new(0),
            next_correction: AtomicU64::new(0),
            start_instant: std::time::Instant::now(),
            start_micros: unix_micros(),
        };
        clock.correct();
        clock
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        let ticks = self.counter.raw();
        if ticks >= self.next_correction.load(Ordering::Relaxed) {
            self.correct();
        }
        self.scale_ticks(ticks).wrapping_add(self.offset.load(Ordering::Relaxed))
    }

    #[inline]
    fn scale_ticks(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 64) as u64
    }

    /// Ties the counter to the monotonic clock again. Of several threads that do so at once one is heeded.
    #[cold]
    fn correct(&self) {
        let offset = self.offset.load(Ordering::Relaxed);
        let shown = |ticks| self.scale_ticks(ticks).wrapping_add(offset);
        // The thread may be held up between any two of these readings. What is certain all the same: the clock is
        // behind if it shows less after the truth was read, and ahead if it showed more before.
        let before = self.counter.raw();
        let elapsed = u64::try_from(self.start_instant.elapsed().as_micros()).unwrap_or(u64::MAX);
        let truth = self.start_micros.saturating_add(elapsed);
        let after = self.counter.raw();
        let wrong = match (shown(before), shown(after)) {
            (_, late) if late < truth => Some(late),
            (early, _) if early.saturating_sub(truth) > MAX_AHEAD_US => Some(early),
            _ => None,
        };
        if let Some(wrong) = wrong {
            let right = offset.wrapping_add(truth.wrapping_sub(wrong));
            // Whether or not it was another thread that stepped ahead, somebody did.
            let _ = self.offset.compare_exchange(offset, right, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.next_correction.store(after.saturating_add(self.ticks_between_corrections), Ordering::Relaxed);
    }
}

/// The kernel's own copy of the time, renewed at its timer tick.
struct CoarseClock {
    offset: u64,
    resolution: Micros,
}

#[cfg(target_os = "linux")]
impl CoarseClock {
    fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<CoarseClock> = OnceLock::new();
        let resolution = rustix::time::clock_getres(rustix::time::ClockId::MonotonicCoarse);
        Some(SHARED.get_or_init(|| Self {
            offset: unix_micros().wrapping_sub(Self::read()),
            resolution: Micros::new((resolution.tv_nsec as u64).div_ceil(1_000)),
        }))
    }

    #[inline]
    fn now(&self) -> u64 {
        Self::read().wrapping_add(self.offset)
    }

    #[inline]
    fn read() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
        time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1_000
    }
}

#[cfg(not(target_os = "linux"))]
impl CoarseClock {
    fn shared() -> Option<&'static Self> {
        None
    }

    fn now(&self) -> u64 {
        self.offset
    }
}

#[cfg(feature = "tokio")]
#[derive(Clone, Copy)]
struct TokioClock {
    start_instant: tokio::time::Instant,
    start_micros: u64,
}

#[cfg(feature = "tokio")]
impl TokioClock {
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn start() -> Self {
        Self { start_instant: tokio::time::Instant::now(), start_micros: unix_micros() }
    }

    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    fn now(&self) -> u64 {
        let elapsed = tokio::time::Instant::now().saturating_duration_since(self.start_instant);
        // Not rounded up: a moment is shown when it is over.
        self.start_micros.saturating_add(elapsed.as_micros() as u64)
    }
}

#[allow(clippy::disallowed_methods, reason = "this is the clock")]
fn unix_micros() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_micros() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manual_clock_never_goes_back() {
        let (clock, manual_clock) = Clock::manual();
        manual_clock.set(Micros::from_secs(5));
        manual_clock.set(Micros::from_secs(3));
        assert_eq!(clock.now(), Micros::from_secs(5));
        manual_clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Micros::MAX);
    }

    #[test]
    fn system_and_coarse_clocks_agree() {
        let (exact, coarse) = (Clock::system(), Clock::coarse());
        let (before, shown, after) = (exact.now(), coarse.now(), exact.now());
        let slack = coarse.resolution().plus(Micros::from_secs(5));
        assert!(shown.plus(slack) >= before && after.plus(slack) >= shown);
    }

    #[test]
    fn system_clock_never_goes_back() {
        let clock = SystemClock::start();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut last = 0;
                    for reading in 0..20_000 {
                        if reading % 3 == 0 {
                            clock.next_correction.store(0, Ordering::Relaxed);
                        }
                        let now = clock.now();
                        assert!(now >= last, "{now} after {last}");
                        last = now;
                    }
                });
            }
        });
    }

    /// What a suspended machine or a moved thread may do to the counter.
    #[test]
    fn system_clock_recovers_from_counter_jump() {
        let clock = SystemClock::start();
        let before = clock.now();
        for jump in [3_600_000_000, 0_u64.wrapping_sub(3_600_000_000)] {
            clock.offset.store(clock.offset.load(Ordering::Relaxed).wrapping_add(jump), Ordering::Relaxed);
            clock.next_correction.store(0, Ordering::Relaxed);
            assert!(clock.now().abs_diff(before) < 60_000_000);
        }
    }

    #[test]
    fn clock_correction_is_small() {
        let clock = SystemClock::start();
        let before = clock.now();
        clock.next_correction.store(0, Ordering::Relaxed);
        let after = clock.now();
        assert!(after.abs_diff(before) < 5_000_000);
        assert!(clock.next_correction.load(Ordering::Relaxed) > 0);
    }
}
