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
/// let lag = EventLoopLag::watch(Duration::from_millis(100))?;
/// let monitor = LoadMonitor::builder().machine().probe("lag", lag).start()?;
/// # drop(monitor);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct EventLoopLag {
    beat: Arc<Beat>,
    full_at: Micros,
}

/// How often the task looks.
const EVERY: Micros = Micros::from_millis(50);

impl EventLoopLag {
    /// Watches the runtime that this is called on, until it is dropped. A lag of `full_at` is a load of 100 %.
    pub fn watch(full_at: Duration) -> Result<Self, SettingError> {
        Self::watch_by(full_at, Clock::system())
    }

    /// The same by another clock.
    pub fn watch_by(full_at: Duration, clock: Clock) -> Result<Self, SettingError> {
        let full_at = Micros::from(full_at);
        SettingError::require_finite("a full lag", full_at)?;
        let runtime = tokio::runtime::Handle::try_current()
            .map_err(|error| SettingError::new(error.to_string(), "start it on tokio's runtime"))?;
        let beat = Arc::new(Beat { clock, due: AtomicU64::new(NEVER), worst: AtomicU64::new(0) });
        drop(runtime.spawn(keep_beat(Arc::downgrade(&beat))));
        Ok(Self { beat, full_at })
    }
}

impl Probe for EventLoopLag {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        // By the clock of the task, which may not be the monitor's.
        let late = self.beat.late(self.beat.clock.now())?;
        Some(Percent::from_ratio(late.get(), self.full_at.get()))
    }
}

/// What the task leaves for the probe.
#[derive(Debug)]
struct Beat {
    clock: Clock,
    /// When it will be awake again, in microseconds.
    due: AtomicU64,
    /// The worst lag since the last reading.
    worst: AtomicU64,
}

/// No task, no lag.
const NEVER: u64 = u64::MAX;

impl Beat {
    fn sleep_until(&self, due: Micros) {
        self.due.store(due.get(), Ordering::Release);
    }

    fn awake(&self, now: Micros, due: Micros) {
        self.worst.fetch_max(now.since(due).get(), Ordering::AcqRel);
    }

    /// The worst lag since the last reading, with that of right now; `None` without a task.
    fn late(&self, now: Micros) -> Option<Micros> {
        let worst = self.worst.swap(0, Ordering::AcqRel);
        match self.due.load(Ordering::Acquire) {
            NEVER => None,
            due => Some(Micros::new(worst.max(now.get().saturating_sub(due)))),
        }
    }
}

/// A runtime that ends takes the task with it; then there is no lag, rather than one without an end.
struct Beating(Weak<Beat>);

impl Drop for Beating {
    fn drop(&mut self) {
        if let Some(beat) = self.0.upgrade() {
            beat.due.store(NEVER, Ordering::Release);
        }
    }
}

async fn keep_beat(beat: Weak<Beat>) {
    let beating = Beating(beat);
    while let Some((clock, due)) = beating.0.upgrade().map(|beat| {
        let due = beat.clock.now().plus(EVERY);
        beat.sleep_until(due);
        (beat.clock.clone(), due)
    }) {
        WaitUntil::new(&clock, Some(due), None).await;
        if let Some(beat) = beating.0.upgrade() {
            beat.awake(clock.now(), due);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_that_stands_still_is_late_before_it_wakes() {
        let (clock, _hand) = Clock::manual();
        let beat = Beat { clock, due: AtomicU64::new(NEVER), worst: AtomicU64::new(0) };
        let at = Micros::from_millis;
        assert_eq!(beat.late(at(0)), None);
        beat.sleep_until(at(50));
        assert_eq!(beat.late(at(40)), Some(Micros::ZERO));
        assert_eq!(beat.late(at(250)), Some(at(200)));
        beat.awake(at(450), at(50));
        beat.sleep_until(at(500));
        assert_eq!(beat.late(at(460)), Some(at(400)), "the worst is told once");
        assert_eq!(beat.late(at(470)), Some(Micros::ZERO));
    }
}
