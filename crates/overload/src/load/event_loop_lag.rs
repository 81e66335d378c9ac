//! How late tasks get their turn on tokio's event loop.
//!
//! ```text
//!   due       ▼         ▼         ▼
//!   awake      ▼         ▼              ▼     late: somebody held the thread
//! ```
//!
//! A task sleeps and looks how late it wakes up. A loop that stands still wakes nobody, so the reading also counts for
//! how long the task is overdue: the monitor reads it from a thread of its own.

use super::Probe;
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, Percent, SettingError};
use tidegate_limiter::{Clock, WaitUntil};

/// How late the event loop is, as a share of a lag that counts as full.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::load::{EventLoopLag, LoadMonitor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tidegate_core::SettingError> {
/// let event_loop_lag = EventLoopLag::watch(Duration::from_millis(100))?;
/// let monitor = LoadMonitor::builder().machine().probe("lag", event_loop_lag).start()?;
/// # drop(monitor);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventLoopLag {
    state: Arc<LagState>,
    saturation_lag: Micros,
}

/// How often the task looks.
const SAMPLE_INTERVAL: Micros = Micros::from_millis(50);

impl EventLoopLag {
    /// Watches the runtime that this is called on, until it is dropped. A lag of `full_at` is a load of 100 %.
    pub fn watch(full_at: Duration) -> Result<Self, SettingError> {
        Self::watch_with_clock(full_at, Clock::system())
    }

    /// The same by another clock.
    pub fn watch_with_clock(full_at: Duration, clock: Clock) -> Result<Self, SettingError> {
        let full_at = Micros::from(full_at);
        SettingError::require_finite("a full lag", full_at)?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SettingError::new(error.to_string(), "start it on tokio's runtime"))?;
        let beat = Arc::new(LagState { clock, due: AtomicU64::new(NOT_RUNNING), max_lag: AtomicU64::new(0) });
        drop(runtime.spawn(measure_lag(Arc::downgrade(&beat))));
        Ok(Self { state: beat, saturation_lag: full_at })
    }
}

impl Probe for EventLoopLag {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        // By the clock of the task, which may not be the monitor's.
        let late = self.state.take_lag(self.state.clock.now())?;
        Some(Percent::from_ratio(late.get(), self.saturation_lag.get()))
    }
}

/// What the task leaves for the probe.
#[derive(Debug)]
struct LagState {
    clock: Clock,
    /// When it will be awake again, in microseconds.
    due: AtomicU64,
    /// The worst lag since the last reading.
    max_lag: AtomicU64,
}

/// No task, no lag.
const NOT_RUNNING: u64 = u64::MAX;

impl LagState {
    fn set_due(&self, due: Micros) {
        self.due.store(due.get(), Ordering::Release);
    }

    fn record_wakeup(&self, now: Micros, due: Micros) {
        self.max_lag.fetch_max(now.since(due).get(), Ordering::AcqRel);
    }

    /// The worst lag since the last reading, with that of right now; `None` without a task.
    fn take_lag(&self, now: Micros) -> Option<Micros> {
        let worst = self.max_lag.swap(0, Ordering::AcqRel);
        match self.due.load(Ordering::Acquire) {
            NOT_RUNNING => None,
            due => Some(Micros::new(worst.max(now.get().saturating_sub(due)))),
        }
    }
}

/// A runtime that ends takes the task with it; then there is no lag, rather than one without an end.
struct LagTaskGuard(Weak<LagState>);

impl Drop for LagTaskGuard {
    fn drop(&mut self) {
        if let Some(beat) = self.0.upgrade() {
            beat.due.store(NOT_RUNNING, Ordering::Release);
        }
    }
}

async fn measure_lag(beat: Weak<LagState>) {
    let beating = LagTaskGuard(beat);
    while let Some((clock, due)) = beating.0.upgrade().map(|beat| {
        let due = beat.clock.now().plus(SAMPLE_INTERVAL);
        beat.set_due(due);
        (beat.clock.clone(), due)
    }) {
        WaitUntil::new(&clock, Some(due), None).await;
        if let Some(beat) = beating.0.upgrade() {
            beat.record_wakeup(clock.now(), due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_loop_reports_lag_before_wakeup() {
        let (clock, _manual_clock) = Clock::manual();
        let beat = LagState { clock, due: AtomicU64::new(NOT_RUNNING), max_lag: AtomicU64::new(0) };
        let at = Micros::from_millis;
        assert_eq!(beat.take_lag(at(0)), None);
        beat.set_due(at(50));
        assert_eq!(beat.take_lag(at(40)), Some(Micros::ZERO));
        assert_eq!(beat.take_lag(at(250)), Some(at(200)));
        beat.record_wakeup(at(450), at(50));
        beat.set_due(at(500));
        assert_eq!(beat.take_lag(at(460)), Some(at(400)), "the worst is told once");
        assert_eq!(beat.take_lag(at(470)), Some(Micros::ZERO));
    }
}
