//! Reads the signals, smooths them, and leaves the answer where a request finds it at once.

use super::{Cpu, Descriptors, Host, Memory, Probe, Stall, smoothed};
use crate::{Average, LoadGauge, LoadLevel, LoadLevels};
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

/// Watches the load of this process and its machine.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::load::LoadMonitor;
/// use tidegate_limiter::Clock;
/// use tidegate_overload::LoadLevel;
/// use tidegate_core::SlotOwner;
///
/// // On a server: `LoadMonitor::builder().machine().start()?` and no more.
/// let (clock, hand) = Clock::manual();
/// let queue = |_now| Some(SlotOwner::ratio(95, 100));
/// let monitor = LoadMonitor::builder().clock(clock).probe("queue", queue).build()?;
/// monitor.sample_once();
/// assert_eq!(monitor.load().level, LoadLevel::Critical);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
///
/// The load is that of the fullest signal. Clones watch together; when the last is dropped, the watching ends.
#[derive(Clone)]
pub struct LoadMonitor {
    handle: Arc<Handle>,
}

/// The load at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// The smoothed share of the fullest signal; `None` if there is no signal.
    pub share: Option<Percent>,
    /// What that means, without flapping.
    pub level: LoadLevel,
}

/// Told of the load after each reading, off the request path.
pub trait Follower: Send + Sync {
    /// The load at `now`.
    fn follow(&self, now: Micros, load: Load);
}

impl LoadMonitor {
    /// A monitor without signals yet.
    pub fn builder() -> LoadMonitorBuilder {
        LoadMonitorBuilder {
            clock: None,
            interval: Micros::from_millis(250),
            half_life: Micros::from_secs(1),
            levels: LoadLevels::default(),
            probes: Vec::new(),
        }
    }

    /// The load as of the last reading: one atomic load.
    #[inline]
    pub fn load(&self) -> Load {
        Load::unpack(self.handle.shared.load.load(Ordering::Relaxed))
    }

    /// Each signal by name, smoothed; `None` if this machine does not have it.
    pub fn signals(&self) -> impl Iterator<Item = (&str, Option<Percent>)> {
        let signals = self.handle.shared.signals.iter();
        signals.map(|signal| (&*signal.name, signal.share()))
    }

    /// Reads all signals now. For a monitor that was built and not started; one that runs does it by itself.
    pub fn sample_once(&self) {
        self.handle.shared.sample();
    }

    /// Tells `follower` of the load after each reading, for as long as it lives.
    pub fn tell(&self, follower: &Arc<impl Follower + 'static>) {
        let follower: Weak<dyn Follower> = Arc::<_>::downgrade(follower) as Weak<dyn Follower>;
        let mut followers = lock(&self.handle.shared.followers);
        followers.retain(|follower| follower.strong_count() > 0);
        followers.push(follower);
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.handle.shared.clock
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
    probes: Vec<(String, Percent, Box<dyn Probe>)>,
}

impl LoadMonitorBuilder {
    /// The clock; the machine's exact one unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How often the signals are read; every 250 ms unless told otherwise.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        Self { interval: interval.into(), ..self }
    }

    /// How fast the past is forgotten: by half in this time; one second unless told otherwise.
    #[must_use]
    pub fn half_life(self, half_life: Duration) -> Self {
        Self { half_life: half_life.into(), ..self }
    }

    /// Where the levels begin and end.
    #[must_use]
    pub fn levels(self, levels: LoadLevels) -> Self {
        Self { levels, ..self }
    }

    /// One more signal.
    #[must_use]
    pub fn probe(self, name: impl Into<String>, probe: impl Probe + 'static) -> Self {
        self.probe_full_at(name, Percent::FULL, probe)
    }

    /// One more signal, that counts as full when it reads `full_at` already.
    #[must_use]
    pub fn probe_full_at(
        mut self,
        name: impl Into<String>,
        full_at: Percent,
        probe: impl Probe + 'static,
    ) -> Self {
        self.probes.push((name.into(), full_at, Box::new(probe)));
        self
    }

    /// The signals of this machine: `cpu`, `memory`, `descriptors`, and the stalls, of which those for a processor count
    /// as full at 60 % of the time, those for disks at 50 % and those for memory at 20 %. Not the lag of an event loop,
    /// which must be watched from inside of it.
    #[must_use]
    pub fn machine(self) -> Self {
        self.machine_at(&Host::local())
    }

    /// The same of another place.
    #[must_use]
    pub fn machine_at(self, host: &Host) -> Self {
        self.probe("cpu", Cpu::of(host.clone()))
            .probe("memory", Memory::of(host.clone()))
            .probe("descriptors", Descriptors::of(host.clone()))
            .probe_full_at("cpu stall", Percent::from_ratio(60, 100), Stall::cpu().of(host.clone()))
            .probe_full_at("memory stall", Percent::from_ratio(20, 100), Stall::memory().of(host.clone()))
            .probe_full_at("io stall", Percent::from_ratio(50, 100), Stall::io().of(host.clone()))
    }

    /// A monitor that reads when [`LoadMonitor::sample_once`] is called, and never by itself.
    pub fn build(self) -> Result<LoadMonitor, SettingError> {
        let shared = self.into_shared()?;
        Ok(LoadMonitor { handle: Arc::new(Handle { shared, stop: None }) })
    }

    /// A monitor with a thread of its own, which ends when the last handle is dropped. The surest way: it also sees
    /// an event loop that stands still.
    pub fn start(self) -> Result<LoadMonitor, SettingError> {
        let shared = self.into_shared()?;
        let stop = Arc::new(Stop::default());
        let (of_thread, until) = (shared.clone(), stop.clone());
        let thread = thread::Builder::new().name("tidegate-load".into()).spawn(move || {
            while !until.is_rung() {
                of_thread.sample();
                let next = of_thread.clock.now().plus(of_thread.interval);
                block_until(&of_thread.clock, Some(next), Some(&until.bell));
            }
        });
        thread.map_err(|error| {
            SettingError::new(
                format!("no thread to watch the load: {error}"),
                "let the process have more threads",
            )
        })?;
        Ok(LoadMonitor { handle: Arc::new(Handle { shared, stop: Some(stop) }) })
    }

    /// A monitor that is a task of the runtime that this is called on, and ends when the last handle is dropped.
    #[cfg(feature = "tokio")]
    pub fn start_on_tokio(self) -> Result<LoadMonitor, SettingError> {
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SettingError::new(error.to_string(), "start it on tokio's runtime"))?;
        let shared = self.into_shared()?;
        let stop = Arc::new(Stop::default());
        let (of_task, until) = (shared.clone(), stop.clone());
        drop(runtime.spawn(async move {
            while !until.is_rung() {
                of_task.sample();
                let next = of_task.clock.now().plus(of_task.interval);
                WaitUntil::new(&of_task.clock, Some(next), Some(&until.bell)).await;
            }
        }));
        Ok(LoadMonitor { handle: Arc::new(Handle { shared, stop: Some(stop) }) })
    }

    fn into_shared(self) -> Result<Arc<Shared>, SettingError> {
        SettingError::require_finite("an interval", self.interval)?;
        let average = Average::new(self.half_life)?;
        let mut signals = Vec::new();
        let mut meters = Vec::new();
        for (name, full_at, probe) in self.probes {
            SettingError::require_nonzero(&format!("a full `{name}`"), full_at.millionths().into())?;
            if signals.iter().any(|signal: &Signal| *signal.name == *name) {
                return Err(SettingError::new(
                    format!("two signals `{name}`"),
                    "give each a name of its own",
                ));
            }
            signals.push(Signal { name: name.into(), share: AtomicU32::new(NO_SHARE) });
            meters.push(Meter { probe, full_at, average });
        }
        Ok(Arc::new(Shared {
            clock: self.clock.unwrap_or_default(),
            interval: self.interval,
            load: AtomicU64::new(Load::default().pack()),
            signals: signals.into(),
            sampler: Mutex::new(Sampler { meters, gauge: LoadGauge::new(self.levels) }),
            followers: Mutex::new(Vec::new()),
        }))
    }
}

impl fmt::Debug for LoadMonitorBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.probes.iter().map(|(name, ..)| name).collect();
        f.debug_struct("LoadMonitorBuilder").field("probes", &names).finish_non_exhaustive()
    }
}

/// What the last of all clones takes down with it.
struct Handle {
    shared: Arc<Shared>,
    stop: Option<Arc<Stop>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(stop) = &self.stop {
            stop.rung.store(true, Ordering::Release);
            stop.bell.notify();
        }
    }
}

#[derive(Default)]
struct Stop {
    rung: AtomicBool,
    bell: Notify,
}

impl Stop {
    fn is_rung(&self) -> bool {
        self.rung.load(Ordering::Acquire)
    }
}

struct Shared {
    clock: Clock,
    interval: Micros,
    /// A packed [`Load`], so that nobody sees half of one.
    load: AtomicU64,
    signals: Box<[Signal]>,
    sampler: Mutex<Sampler>,
    followers: Mutex<Vec<Weak<dyn Follower>>>,
}

/// A smoothed signal, for those who look.
struct Signal {
    name: Box<str>,
    /// In millionths.
    share: AtomicU32,
}

/// Instead of millionths: there is no such signal.
const NO_SHARE: u32 = u32::MAX;

impl Signal {
    fn share(&self) -> Option<Percent> {
        share_of(self.share.load(Ordering::Relaxed))
    }
}

fn share_of(millionths: u32) -> Option<Percent> {
    (millionths != NO_SHARE).then(|| Percent::from_millionths(millionths))
}

struct Sampler {
    meters: Vec<Meter>,
    gauge: LoadGauge,
}

struct Meter {
    probe: Box<dyn Probe>,
    full_at: Percent,
    average: Average,
}

impl Meter {
    /// The smoothed share; `None` if there is no reading now.
    fn read(&mut self, now: Micros) -> Option<Percent> {
        // A probe that panics has no signal; the others must go on.
        let reading = catch_unwind(AssertUnwindSafe(|| self.probe.read(now))).ok().flatten()?;
        let share = Percent::from_ratio(reading.millionths().into(), self.full_at.millionths().into());
        self.average.observe(now, share.as_f64());
        smoothed(&self.average)
    }
}

impl Shared {
    fn sample(&self) {
        let mut sampler = lock(&self.sampler);
        let now = self.clock.now();
        let mut fullest = None;
        let Sampler { meters, gauge } = &mut *sampler;
        for (meter, signal) in meters.iter_mut().zip(&self.signals) {
            let share = meter.read(now);
            signal.share.store(share.map_or(NO_SHARE, Percent::millionths), Ordering::Relaxed);
            fullest = fullest.max(share);
        }
        // Without any signal there is no reason to hold on to a high level for ever.
        let level = gauge.observe(now, fullest.unwrap_or(Percent::ZERO));
        let load = Load { share: fullest, level };
        self.load.store(load.pack(), Ordering::Relaxed);
        drop(sampler);

        let followers = std::mem::take(&mut *lock(&self.followers));
        let alive: Vec<_> = followers.into_iter().filter(|follower| tell(follower, now, load)).collect();
        // Those who came meanwhile are in the list already.
        lock(&self.followers).extend(alive);
    }
}

/// Tells a follower, if it still lives. One that panics must not end the watching.
fn tell(follower: &Weak<dyn Follower>, now: Micros, load: Load) -> bool {
    let Some(follower) = follower.upgrade() else { return false };
    // It may be the last to hold the follower, whose end is code of its own.
    let _panicked = catch_unwind(AssertUnwindSafe(move || follower.follow(now, load)));
    true
}

impl Load {
    fn pack(self) -> u64 {
        let share = self.share.map_or(NO_SHARE, Percent::millionths);
        u64::from(share) << 8 | self.level as u64
    }

    fn unpack(word: u64) -> Self {
        let level = match word & 0xff {
            0 => LoadLevel::Relaxed,
            1 => LoadLevel::Normal,
            2 => LoadLevel::Busy,
            _ => LoadLevel::Critical,
        };
        Self { share: share_of((word >> 8) as u32), level }
    }
}
