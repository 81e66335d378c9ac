//! Reads and smooths the signals, and publishes the load for the request path.

use super::{HostPaths, LoadSource, MachineSignal, smoothed_percent};
use crate::{Ewma, LoadGauge, LoadLevel, LoadLevels};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::{Micros, Percent, SettingError};
#[cfg(feature = "tokio")]
use tidegate_limiter::WaitUntil;
use tidegate_limiter::{
    Clock, Notify, block_until,
    sync::{Mutex, lock},
};

/// Monitors the load of this process and its machine.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::load::LoadMonitor;
/// use tidegate_limiter::Clock;
/// use tidegate_overload::LoadLevel;
/// use tidegate_core::Percent;
///
/// // On a server: `LoadMonitor::builder().machine().start()?` and no more.
/// let (clock, manual_clock) = Clock::manual();
/// let queue = |_now| Some(Percent::from_ratio(95, 100));
/// let monitor = LoadMonitor::builder().clock(clock).source("queue", queue).build()?;
/// monitor.sample_once();
/// assert_eq!(monitor.load().level, LoadLevel::Critical);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// The load is that of the fullest signal. Clones share one monitor, which stops when the last clone is
/// dropped.
#[derive(Clone)]
pub struct LoadMonitor {
    handle: Arc<MonitorHandle>,
}

/// The load at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReading {
    /// The smoothed share of the fullest signal; `None` if there is no signal.
    pub share: Option<Percent>,
    /// Its level, with hysteresis.
    pub level: LoadLevel,
}

/// An observer of the load, called after each reading, off the request path.
pub trait LoadObserver: Send + Sync {
    /// Called with the load at `now`.
    fn on_load(&self, now: Micros, load: LoadReading);
}

impl LoadMonitor {
    /// The default interval of the readings.
    pub const DEFAULT_INTERVAL: Micros = Micros::from_millis(250);

    /// Creates a builder without signals.
    pub fn builder() -> LoadMonitorBuilder {
        LoadMonitorBuilder {
            clock: None,
            interval: Self::DEFAULT_INTERVAL,
            half_life: Micros::from_secs(1),
            levels: LoadLevels::default(),
            sources: Vec::new(),
        }
    }

    /// The load as of the last reading: one atomic load.
    #[inline]
    pub fn load(&self) -> LoadReading {
        LoadReading::unpack(self.handle.state.load.load(Ordering::Relaxed))
    }

    /// Each signal by name, smoothed; `None` if this machine does not provide it.
    pub fn signals(&self) -> impl Iterator<Item = (&str, Option<Percent>)> {
        let signals = self.handle.state.signals.iter();
        signals.map(|signal| (&*signal.name, signal.share()))
    }

    /// Reads all signals now. For a monitor that was built and not started; a started one reads them itself.
    pub fn sample_once(&self) {
        self.handle.state.sample();
    }

    /// Notifies the observers of the last reading again, without another one: some of them also follow the time.
    pub fn notify_observers(&self) {
        self.handle.state.notify(self.handle.state.clock.now(), self.load());
    }

    /// Notifies `observer` after each reading, for as long as it exists.
    pub fn subscribe(&self, observer: &Arc<impl LoadObserver + 'static>) {
        let observer: Weak<dyn LoadObserver> = Arc::<_>::downgrade(observer) as Weak<dyn LoadObserver>;
        let mut observers = lock(&self.handle.state.observers);
        observers.retain(|observer| observer.strong_count() > 0);
        observers.push(observer);
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.handle.state.clock
    }
}

impl fmt::Debug for LoadMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signals: Vec<_> = self.signals().collect();
        f.debug_struct("LoadMonitor").field("load", &self.load()).field("signals", &signals).finish()
    }
}

/// Settings of a [`LoadMonitor`].
pub struct LoadMonitorBuilder {
    clock: Option<Clock>,
    interval: Micros,
    half_life: Micros,
    levels: LoadLevels,
    sources: Vec<(String, Percent, Box<dyn LoadSource>)>,
}

impl LoadMonitorBuilder {
    /// Sets the clock; the exact system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets how often the signals are read; every 250 ms by default.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval: interval.into(), ..self }
    }

    /// Sets the half-life of the smoothing; one second by default.
    #[must_use]
    pub fn half_life(self, half_life: Duration) -> Self {
        Self { half_life: half_life.into(), ..self }
    }

    /// Sets the thresholds of the levels.
    #[must_use]
    pub fn levels(self, levels: LoadLevels) -> Self {
        Self { levels, ..self }
    }

    /// Adds a signal.
    #[must_use]
    pub fn source(self, name: impl Into<String>, source: impl LoadSource + 'static) -> Self {
        self.source_with_saturation(name, Percent::FULL, source)
    }

    /// Adds a signal that counts as 100 % when it reads `full_at`.
    #[must_use]
    pub fn source_with_saturation(
        mut self,
        name: impl Into<String>,
        full_at: Percent,
        source: impl LoadSource + 'static,
    ) -> Self {
        self.sources.push((name.into(), full_at, Box::new(source)));
        self
    }

    /// Adds the signals of this machine: `cpu`, `memory`, `descriptors`, and the pressure stalls, which count
    /// as 100 % at 60 % of the time for CPU, 50 % for I/O and 20 % for memory. It does not add the event loop
    /// lag, which must be measured from inside the loop.
    #[must_use]
    pub fn machine(self) -> Self {
        self.machine_with_host(&HostPaths::local())
    }

    /// Like [`machine`](Self::machine), with the files of `host`.
    #[must_use]
    pub fn machine_with_host(self, host: &HostPaths) -> Self {
        MachineSignal::ALL
            .into_iter()
            .fold(self, |builder, signal| builder.machine_signal(signal, signal.default_saturation(), host))
    }

    /// Adds a signal of this machine, which counts as 100 % when it reads `full_at`.
    #[must_use]
    pub fn machine_signal(mut self, signal: MachineSignal, full_at: Percent, host: &HostPaths) -> Self {
        self.sources.push((signal.name().to_owned(), full_at, signal.source(host)));
        self
    }

    /// Builds a monitor that reads only when [`LoadMonitor::sample_once`] is called.
    pub fn build(self) -> Result<LoadMonitor, SettingError> {
        let shared = self.into_state()?;
        Ok(LoadMonitor { handle: Arc::new(MonitorHandle { state: shared, stop: None }) })
    }

    /// Starts a monitor with its own thread, which ends when the last handle is dropped. Preferred, because
    /// it also detects a blocked event loop.
    pub fn start(self) -> Result<LoadMonitor, SettingError> {
        let shared = self.into_state()?;
        let stop = Arc::new(StopSignal::default());
        let (thread_state, thread_stop) = (shared.clone(), stop.clone());
        let thread = thread::Builder::new().name("tidegate-load".into()).spawn(move || {
            while !thread_stop.is_stopped() {
                thread_state.sample();
                let next = thread_state.clock.now().saturating_add(thread_state.interval);
                block_until(&thread_state.clock, Some(next), Some(&thread_stop.notify));
            }
        });
        thread.map_err(|error| {
            SettingError::new(
                format!("cannot start the load monitor thread: {error}"),
                "raise the thread limit of the process",
            )
        })?;
        Ok(LoadMonitor { handle: Arc::new(MonitorHandle { state: shared, stop: Some(stop) }) })
    }

    /// Starts a monitor as a task of the current runtime, which ends when the last handle is dropped.
    #[cfg(feature = "tokio")]
    pub fn start_on_tokio(self) -> Result<LoadMonitor, SettingError> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SettingError::new(error.to_string(), "call it on a tokio runtime"))?;
        let shared = self.into_state()?;
        let stop = Arc::new(StopSignal::default());
        let (task_state, task_stop) = (shared.clone(), stop.clone());
        drop(runtime.spawn(async move {
            while !task_stop.is_stopped() {
                task_state.sample();
                let next = task_state.clock.now().saturating_add(task_state.interval);
                WaitUntil::new(&task_state.clock, Some(next), Some(&task_stop.notify)).await;
            }
        }));
        Ok(LoadMonitor { handle: Arc::new(MonitorHandle { state: shared, stop: Some(stop) }) })
    }

    fn into_state(self) -> Result<Arc<MonitorState>, SettingError> {
        SettingError::require_finite("an interval", self.interval)?;
        let average = Ewma::new(self.half_life)?;
        let mut signals = Vec::new();
        let mut meters = Vec::new();
        for (name, full_at, source) in self.sources {
            SettingError::require_nonzero(
                &format!("the saturation of `{name}`"),
                full_at.millionths().into(),
            )?;
            if signals.iter().any(|signal: &LoadSignal| *signal.name == *name) {
                return Err(SettingError::new(
                    format!("duplicate signal `{name}`"),
                    "give each signal a unique name",
                ));
            }
            signals.push(LoadSignal { name: name.into(), share: AtomicU32::new(NO_SIGNAL) });
            meters.push(SignalMeter { source, saturation: full_at, average });
        }
        Ok(Arc::new(MonitorState {
            clock: self.clock.unwrap_or_default(),
            interval: self.interval,
            load: AtomicU64::new(LoadReading::default().pack()),
            signals: signals.into(),
            sampler: Mutex::new(Sampler { meters, gauge: LoadGauge::new(self.levels) }),
            observers: Mutex::new(Vec::new()),
        }))
    }
}

impl fmt::Debug for LoadMonitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.sources.iter().map(|(name, ..)| name).collect();
        f.debug_struct("LoadMonitorBuilder").field("sources", &names).finish_non_exhaustive()
    }
}

/// Stops the monitor when the last clone is dropped.
struct MonitorHandle {
    state: Arc<MonitorState>,
    stop: Option<Arc<StopSignal>>,
}

impl Drop for MonitorHandle {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.stopped.store(true, Ordering::Release);
            stop.notify.notify();
        }
    }
}

#[derive(Default)]
struct StopSignal {
    stopped: AtomicBool,
    notify: Notify,
}

impl StopSignal {
    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }
}

struct MonitorState {
    clock: Clock,
    interval: Micros,
    /// A packed [`LoadReading`], so that it is read and written atomically.
    load: AtomicU64,
    signals: Box<[LoadSignal]>,
    sampler: Mutex<Sampler>,
    observers: Mutex<Vec<Weak<dyn LoadObserver>>>,
}

/// A published, smoothed signal.
struct LoadSignal {
    name: Box<str>,
    /// In millionths.
    share: AtomicU32,
}

/// The value for a missing signal, instead of millionths.
const NO_SIGNAL: u32 = u32::MAX;

impl LoadSignal {
    fn share(&self) -> Option<Percent> {
        decode_share(self.share.load(Ordering::Relaxed))
    }
}

fn decode_share(millionths: u32) -> Option<Percent> {
    (millionths != NO_SIGNAL).then(|| Percent::from_millionths(millionths))
}

struct Sampler {
    meters: Vec<SignalMeter>,
    gauge: LoadGauge,
}

struct SignalMeter {
    source: Box<dyn LoadSource>,
    saturation: Percent,
    average: Ewma,
}

impl SignalMeter {
    /// The smoothed share; `None` if there is no reading now.
    fn read(&mut self, now: Micros) -> Option<Percent> {
        // A source that panics counts as a missing signal; the others are still read.
        let reading = catch_unwind(AssertUnwindSafe(|| self.source.read(now))).ok().flatten()?;
        let share = Percent::from_ratio(reading.millionths().into(), self.saturation.millionths().into());
        self.average.observe(now, share.as_f64());
        smoothed_percent(&self.average)
    }
}

impl MonitorState {
    fn sample(&self) {
        let mut sampler = lock(&self.sampler);
        let now = self.clock.now();
        let mut fullest = None;
        let Sampler { meters, gauge } = &mut *sampler;
        for (meter, signal) in meters.iter_mut().zip(&self.signals) {
            let share = meter.read(now);
            signal.share.store(share.map_or(NO_SIGNAL, Percent::millionths), Ordering::Relaxed);
            fullest = fullest.max(share);
        }
        // Without any signal the level falls, instead of staying high forever.
        let level = gauge.observe(now, fullest.unwrap_or(Percent::ZERO));
        let load = LoadReading { share: fullest, level };
        self.load.store(load.pack(), Ordering::Relaxed);
        drop(sampler);
        self.notify(now, load);
    }

    fn notify(&self, now: Micros, load: LoadReading) {
        let observers = std::mem::take(&mut *lock(&self.observers));
        let alive: Vec<_> =
            observers.into_iter().filter(|observer| notify_observer(observer, now, load)).collect();
        // Observers that subscribed meanwhile are in the list already.
        lock(&self.observers).extend(alive);
    }
}

/// Notifies an observer; returns `false` if it was dropped. A panicking observer must not stop the monitor.
fn notify_observer(observer: &Weak<dyn LoadObserver>, now: Micros, load: LoadReading) -> bool {
    let Some(observer) = observer.upgrade() else { return false };
    // This may be the last reference, and the observer's drop may panic too.
    let _panicked = catch_unwind(AssertUnwindSafe(move || observer.on_load(now, load)));
    true
}

impl LoadReading {
    fn pack(self) -> u64 {
        let share = self.share.map_or(NO_SIGNAL, Percent::millionths);
        u64::from(share) << 8 | self.level as u64
    }

    fn unpack(word: u64) -> Self {
        let level = match word & 0xff {
            0 => LoadLevel::Relaxed,
            1 => LoadLevel::Normal,
            2 => LoadLevel::Busy,
            _ => LoadLevel::Critical,
        };
        Self { share: decode_share((word >> 8) as u32), level }
    }
}
