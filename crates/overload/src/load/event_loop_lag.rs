//! The lag of tokio's event loop: how late tasks are polled.
//!
//! ```text
//!   due       ▼         ▼         ▼
//!   awake      ▼         ▼              ▼     late: a task blocked the thread
//! ```
//!
//! A task sleeps and measures how late it wakes up. A blocked loop does not wake it, so a reading also counts how long
//! the task is overdue: the monitor reads it from its own thread.

use super::LoadSource;
use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Micros, Percent, SettingError};
use tidegate_limiter::{Clock, WaitUntil};

/// Measures the event loop lag, as a share of the lag that counts as 100 %.
///
/// ```
/// use std::time::Duration;
/// use tidegate_overload::load::{EventLoopLag, LoadMonitor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), tidegate_core::SettingError> {
/// let event_loop_lag = EventLoopLag::watch(Duration::from_millis(100))?;
/// let monitor = LoadMonitor::builder().machine().source("lag", event_loop_lag).start()?;
/// # drop(monitor);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventLoopLag {
    state: Arc<LagState>,
    saturation_lag: Micros,
}

/// How often the task measures.
const SAMPLE_INTERVAL: Micros = Micros::from_millis(50);

impl EventLoopLag {
    /// Measures the current runtime until the source is dropped. A lag of `full_at` is a load of 100 %.
    pub fn watch(full_at: Duration) -> Result<Self, SettingError> {
        Self::watch_with_clock(full_at, Clock::system())
    }

    /// Like [`watch`](Self::watch), with another clock.
    pub fn watch_with_clock(full_at: Duration, clock: Clock) -> Result<Self, SettingError> {
        let full_at = Micros::from(full_at);
        SettingError::require_finite("a saturation lag", full_at)?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SettingError::new(error.to_string(), "call it on a tokio runtime"))?;
        let state =
            Arc::new(LagState { clock, due: AtomicU64::new(NOT_RUNNING), max_lag: AtomicU64::new(0) });
        drop(runtime.spawn(measure_lag(Arc::downgrade(&state))));
        Ok(Self { state, saturation_lag: full_at })
    }
}

impl LoadSource for EventLoopLag {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        // On the clock of the task, which may differ from that of the monitor.
        let late = self.state.take_lag(self.state.clock.now())?;
        Some(Percent::from_ratio(late.get(), self.saturation_lag.get()))
    }
}

/// State shared by the task and the source.
#[derive(Debug)]
struct LagState {
    clock: Clock,
    /// When the task is due, in microseconds.
    due: AtomicU64,
    /// The maximum lag since the last reading.
    max_lag: AtomicU64,
}

/// The task does not run, so there is no lag.
const NOT_RUNNING: u64 = u64::MAX;

impl LagState {
    fn set_due(&self, due: Micros) {
        self.due.store(due.get(), Ordering::Release);
    }

    fn record_wakeup(&self, now: Micros, due: Micros) {
        self.max_lag.fetch_max(now.saturating_sub(due).get(), Ordering::AcqRel);
    }

    /// The maximum lag since the last reading, the current one included; `None` without a task.
    fn take_lag(&self, now: Micros) -> Option<Micros> {
        let worst = self.max_lag.swap(0, Ordering::AcqRel);
        match self.due.load(Ordering::Acquire) {
            NOT_RUNNING => None,
            due => Some(Micros::new(worst.max(now.get().saturating_sub(due)))),
        }
    }
}

/// Resets the state when the runtime drops the task; otherwise the lag would grow without end.
struct LagTaskGuard(Weak<LagState>);

impl Drop for LagTaskGuard {
    fn drop(&mut self) {
        if let Some(state) = self.0.upgrade() {
            state.due.store(NOT_RUNNING, Ordering::Release);
        }
    }
}

async fn measure_lag(state: Weak<LagState>) {
    let guard = LagTaskGuard(state);
    while let Some((clock, due)) = guard.0.upgrade().map(|state| {
        let due = state.clock.now().saturating_add(SAMPLE_INTERVAL);
        state.set_due(due);
        (state.clock.clone(), due)
    }) {
        WaitUntil::new(&clock, Some(due), None).await;
        if let Some(state) = guard.0.upgrade() {
            state.record_wakeup(clock.now(), due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocked_loop_reports_lag_before_wakeup() {
        let (clock, _manual_clock) = Clock::manual();
        let state = LagState { clock, due: AtomicU64::new(NOT_RUNNING), max_lag: AtomicU64::new(0) };
        let at = Micros::from_millis;
        assert_eq!(state.take_lag(at(0)), None);
        state.set_due(at(50));
        assert_eq!(state.take_lag(at(40)), Some(Micros::ZERO));
        assert_eq!(state.take_lag(at(250)), Some(at(200)));
        state.record_wakeup(at(450), at(50));
        state.set_due(at(500));
        assert_eq!(state.take_lag(at(460)), Some(at(400)), "the maximum is reported once");
        assert_eq!(state.take_lag(at(470)), Some(Micros::ZERO));
    }
}
