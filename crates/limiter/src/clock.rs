//! Clocks. No other module reads the system time.
//!
//! Every reading is in microseconds since the Unix epoch, so that windows can follow the calendar. It advances with the
//! monotonic clock, so that a correction of the wall clock changes nothing. Only [`Clock::wall`] follows corrections.

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

/// A source of time: the system clock, a coarse clock, the wall clock, tokio's clock, or a manual clock for tests.
///
/// ```
/// use std::time::Duration;
/// use tidegate_limiter::{Clock, DirectLimiter};
///
/// let (clock, manual_clock) = Clock::manual();
/// let limiter = DirectLimiter::builder().clock(clock).build("1/s")?;
/// assert!(limiter.check().is_allowed());
/// assert!(!limiter.check().is_allowed());
/// manual_clock.advance(Duration::from_secs(1));
/// assert!(limiter.check().is_allowed());
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
    Wall,
    Manual(Arc<ManualClockState>),
    #[cfg(feature = "tokio")]
    Tokio(TokioClock),
}

impl Clock {
    /// The exact clock, and the default: the processor's cycle counter, corrected by the monotonic clock of the operating
    /// system a hundred times a second, so that it does not drift. It never goes back.
    pub fn system() -> Self {
        Self { source: ClockSource::System(SystemClock::shared()) }
    }

    /// A clock that is faster to read and advances only every few milliseconds; [`Clock::resolution`] returns the step, and
    /// [`crate::DirectLimiter::bound`] includes its effect. Equal to [`Clock::system`] where the operating system has no
    /// coarse clock.
    ///
    /// ```
    /// use tidegate_limiter::{Clock, DirectLimiter};
    ///
    /// let exact = DirectLimiter::new("1000/s burst 10")?;
    /// let coarse = DirectLimiter::builder().clock(Clock::coarse()).build("1000/s burst 10")?;
    /// println!("{}", coarse.bound()); // at most 1014 in any 1 s with a resolution of 4 ms
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

    /// The wall clock of the operating system. It follows corrections and includes the time for which the machine was
    /// suspended, but can go back: for dates that another machine compares with its own, not for limits.
    pub fn wall() -> Self {
        Self { source: ClockSource::Wall }
    }

    /// A clock that starts at zero and advances only through the returned [`ManualClock`].
    pub fn manual() -> (Self, ManualClock) {
        let manual_clock =
            Arc::new(ManualClockState { now: AtomicU64::new(0), wakers: Mutex::new(Vec::new()) });
        (Self { source: ClockSource::Manual(manual_clock.clone()) }, ManualClock { state: manual_clock })
    }

    /// Tokio's clock, which a test can pause and advance. Use it for a limiter whose waits follow paused time.
    #[cfg(feature = "tokio")]
    pub fn tokio() -> Self {
        Self { source: ClockSource::Tokio(TokioClock::start()) }
    }

    /// Waits until `deadline`: on tokio's timer, or until a manual clock is advanced.
    #[cfg(feature = "tokio")]
    pub async fn wait_until(&self, deadline: Micros) {
        crate::wait::WaitUntil::new(self, Some(deadline), None).await;
    }

    /// The instant on tokio's own clock after `left` from now, for timers that are reset.
    #[cfg(feature = "tokio")]
    #[allow(clippy::disallowed_methods, reason = "this is the clock")]
    pub(crate) fn tokio_deadline_after(left: Micros) -> tokio::time::Instant {
        tokio::time::Instant::now() + left.to_duration()
    }

    /// The current time.
    #[inline]
    pub fn now(&self) -> Micros {
        Micros::new(self.micros())
    }

    /// The current time as a plain number, for the fast path.
    #[inline(always)]
    pub(crate) fn micros(&self) -> u64 {
        match self.source {
            ClockSource::System(clock) => clock.now(),
            _ => self.micros_slow(),
        }
    }

    /// The current time, if it can be read without a call: on the system clock, unless a correction is due.
    #[inline(always)]
    pub(crate) fn try_micros(&self) -> Option<u64> {
        match self.source {
            ClockSource::System(clock) => clock.try_now(),
            _ => None,
        }
    }

    /// Never inlined, so that reading the system clock stays small.
    #[inline(never)]
    fn micros_slow(&self) -> u64 {
        match &self.source {
            ClockSource::System(clock) => clock.now(),
            ClockSource::Coarse(clock) => clock.now(),
            ClockSource::Wall => unix_micros(),
            ClockSource::Manual(manual_clock) => manual_clock.now.load(Ordering::Acquire),
            #[cfg(feature = "tokio")]
            ClockSource::Tokio(clock) => clock.now(),
        }
    }

    /// The smallest step between two readings.
    pub fn resolution(&self) -> Micros {
        match &self.source {
            ClockSource::Coarse(clock) => clock.resolution,
            _ => Micros::new(1),
        }
    }

    /// The bound with the error of this clock's resolution added.
    #[doc(hidden)]
    pub fn widen_bound(&self, bound: Bound) -> Bound {
        match &self.source {
            ClockSource::Coarse(clock) => bound.with_clock_resolution(clock.resolution),
            _ => bound,
        }
    }

    /// The control of a manual clock: a wait then registers a waker there instead of setting a timer.
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
            ClockSource::Wall => "wall",
            ClockSource::Manual(_) => "manual",
            #[cfg(feature = "tokio")]
            ClockSource::Tokio(_) => "tokio",
        };
        write!(f, "Clock({name}, {})", self.now())
    }
}

/// Advances a manual clock. The clock never goes back.
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
        self.set(now.saturating_add(by.into()));
    }

    /// Sets the clock to `time`, unless it is already later.
    pub fn set(&self, time: Micros) {
        self.state.now.fetch_max(time.get(), Ordering::AcqRel);
        let wakers = std::mem::take(&mut *self.lock_wakers());
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Wakes `waker` when the clock next advances.
    pub(crate) fn register_waker(&self, waker: &Waker) {
        let mut wakers = self.lock_wakers();
        if !wakers.iter().any(|registered| registered.will_wake(waker)) {
            wakers.push(waker.clone());
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

/// The cycle counter, scaled to microseconds, plus an offset that is corrected periodically.
///
/// The measured frequency of the counter is off by about 30 parts per million. The scale is reduced by more than that, so
/// that every correction moves the clock forward, by a microsecond or two.
struct SystemClock {
    counter: quanta::Clock,
    /// Microseconds per tick, in units of 2^-64.
    scale: u64,
    ticks_between_corrections: u64,
    /// The offset added to the scaled counter; a single word, so that reads are atomic.
    offset: AtomicU64,
    /// The tick count at which the next correction is due.
    next_correction: AtomicU64,
    start_instant: std::time::Instant,
    start_micros: u64,
}

const CORRECTIONS_PER_SECOND: u128 = 100;
/// The scale is reduced by one part in this number.
const SLOWDOWN_DIVISOR: u128 = 10_000;
/// A clock that is ahead by more than this is set back: the counter itself has jumped.
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
        // nanos / 2^40 / 1000 · 2^64, in an order that keeps the precision.
        let scale = (u128::from(nanos) << 24) / 1_000;
        let scale = scale - scale / SLOWDOWN_DIVISOR;
        let ticks_per_second = u128::from(ticks) * 1_000_000_000 / u128::from(nanos);
        let saturate = |ticks| u64::try_from(ticks).unwrap_or(u64::MAX);
        let clock = Self {
            counter,
            scale: saturate(scale),
            ticks_between_corrections: saturate(ticks_per_second / CORRECTIONS_PER_SECOND),
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

    /// The current time; `None` if a correction is due.
    #[inline(always)]
    fn try_now(&self) -> Option<u64> {
        let ticks = self.counter.raw();
        let is_corrected = ticks < self.next_correction.load(Ordering::Relaxed);
        is_corrected.then(|| self.scale_ticks(ticks).wrapping_add(self.offset.load(Ordering::Relaxed)))
    }

    #[inline]
    fn scale_ticks(&self, ticks: u64) -> u64 {
        ((u128::from(ticks) * u128::from(self.scale)) >> 64) as u64
    }

    /// Aligns the counter with the monotonic clock. If several threads do so at once, one of them takes effect.
    #[cold]
    fn correct(&self) {
        let offset = self.offset.load(Ordering::Relaxed);
        let shown = |ticks| self.scale_ticks(ticks).wrapping_add(offset);
        // The thread can be preempted between any two of these readings. The clock is certainly behind if it shows less after
        // the reference reading, and certainly ahead if it showed more before it.
        let before = self.counter.raw();
        let elapsed = u64::try_from(self.start_instant.elapsed().as_micros()).unwrap_or(u64::MAX);
        let reference = self.start_micros.saturating_add(elapsed);
        let after = self.counter.raw();
        let shown_time = match (shown(before), shown(after)) {
            (_, late) if late < reference => Some(late),
            (early, _) if early.saturating_sub(reference) > MAX_AHEAD_US => Some(early),
            _ => None,
        };
        if let Some(shown_time) = shown_time {
            let corrected = offset.wrapping_add(reference.wrapping_sub(shown_time));
            // On failure another thread has corrected the clock.
            let _ = self.offset.compare_exchange(offset, corrected, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.next_correction.store(after.saturating_add(self.ticks_between_corrections), Ordering::Relaxed);
    }
}

/// The kernel's coarse time, updated at its timer tick.
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
        // Rounds down: a microsecond counts when it has passed.
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
        let slack = coarse.resolution().saturating_add(Micros::from_secs(5));
        assert!(shown.saturating_add(slack) >= before && after.saturating_add(slack) >= shown);
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

    /// A suspended machine or a migrated thread can make the counter jump.
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
