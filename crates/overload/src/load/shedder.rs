//! Sheds classes of requests while the load is high, the least important first.
//!
//! ```text
//!   load    90% ─ ─ ─ ─ ─ ─ ─┌──╲─ ─ ─ ─ ─ ─ ─ ─ ─   enter of `normal`
//!           80% ─ ─ ─ ─┌─ ─ ─│─ ─╲─ ─ ─ ─ ─ ─ ─ ─ ─   enter of `low`
//!           70% ─ ─ ─ ─│─ ─ ─│─ ─ ─╲──────────────    leave of `low`
//!   shed    nothing ───┘ low  └ low, normal  └ low └ nothing, each after the dwell time
//! ```

use super::{LoadObserver, LoadReading};
use std::{
    fmt,
    sync::atomic::{AtomicU32, Ordering},
};
use tidegate_core::{Micros, Percent, SettingError};
use tidegate_limiter::sync::{Mutex, lock};

/// Sheds classes of requests while the load is above their thresholds, with hysteresis. A reading without a signal counts as
/// no load.
///
/// ```
/// use tidegate_core::{Micros, Percent};
/// use tidegate_overload::load::{LoadObserver as _, LoadReading, LoadShedder};
///
/// // The most important class first: it is never shed.
/// let shedder = LoadShedder::new([None, Some("90%".parse()?), Some("80%".parse()?)])?;
/// let load = |share: &str| LoadReading { share: share.parse().ok(), ..LoadReading::default() };
/// shedder.on_load(Micros::from_secs(1), load("85%"));
/// assert_eq!([0, 1, 2].map(|class| shedder.is_shed(class)), [false, false, true]);
/// shedder.on_load(Micros::from_secs(2), load("75%"));
/// assert!(shedder.is_shed(2), "not yet below the lower threshold");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub struct LoadShedder {
    /// One bit for each class that is shed.
    shed: AtomicU32,
    gauges: Mutex<Vec<ShedGauge>>,
    hysteresis: Percent,
    dwell: Micros,
}

/// The state of one class.
#[derive(Clone, Copy, Debug)]
struct ShedGauge {
    /// `None` for a class that is never shed.
    enter: Option<Percent>,
    is_shed: bool,
    /// Since when the load has been below the lower threshold.
    low_since: Option<Micros>,
}

const MAX_CLASSES: usize = 32;

impl LoadShedder {
    /// Creates a shedder with the threshold of each class, the most important class first; `None` for a class that is never
    /// shed. A class is admitted again when the load has been 10 % lower for five seconds.
    pub fn new(thresholds: impl IntoIterator<Item = Option<Percent>>) -> Result<Self, SettingError> {
        let gauges: Vec<_> = thresholds
            .into_iter()
            .map(|enter| ShedGauge { enter, is_shed: false, low_since: None })
            .collect();
        if gauges.len() > MAX_CLASSES {
            return Err(SettingError::new(
                format!("{} classes", gauges.len()),
                format!("use at most {MAX_CLASSES}"),
            ));
        }
        let declared: Vec<_> = gauges.iter().filter_map(|gauge| gauge.enter).collect();
        for (important, other) in declared.iter().zip(declared.iter().skip(1)) {
            if important < other {
                return Err(SettingError::new(
                    format!("a class is shed at {important}, before a less important one at {other}"),
                    "give less important classes lower thresholds",
                ));
            }
        }
        Ok(Self {
            shed: AtomicU32::new(0),
            gauges: Mutex::new(gauges),
            hysteresis: Percent::from_ratio(1, 10),
            dwell: Micros::from_secs(5),
        })
    }

    /// Sets how far below its threshold the load must fall, and for how long, before a class is admitted again.
    #[must_use]
    pub fn hysteresis(self, hysteresis: Percent, dwell: Micros) -> Self {
        Self { hysteresis, dwell, ..self }
    }

    /// Takes over the state of each class.
    pub fn restore(&self, before: &Self) {
        let mut gauges = lock(&self.gauges);
        for (gauge, known) in gauges.iter_mut().zip(lock(&before.gauges).iter()) {
            // A class without a threshold is never shed.
            gauge.is_shed = known.is_shed && gauge.enter.is_some();
            gauge.low_since = known.low_since;
        }
        self.publish(&gauges);
    }

    /// Called under the lock, so that an older reading never overwrites a newer one.
    fn publish(&self, gauges: &[ShedGauge]) {
        let bits = gauges.iter().enumerate().map(|(class, gauge)| u32::from(gauge.is_shed) << class);
        self.shed.store(bits.fold(0, |all, bit| all | bit), Ordering::Relaxed);
    }

    /// Whether requests of this class are shed now: one atomic load.
    #[inline]
    pub fn is_shed(&self, class: usize) -> bool {
        let shed = self.shed.load(Ordering::Relaxed);
        u32::try_from(class).ok().and_then(|class| shed.checked_shr(class)).is_some_and(|bits| bits & 1 != 0)
    }

    /// Whether requests of some class are shed now.
    pub fn is_shedding(&self) -> bool {
        self.shed.load(Ordering::Relaxed) != 0
    }
}

impl LoadObserver for LoadShedder {
    fn on_load(&self, now: Micros, load: LoadReading) {
        let share = load.share.unwrap_or(Percent::ZERO);
        let mut gauges = lock(&self.gauges);
        gauges.iter_mut().for_each(|gauge| gauge.observe(now, share, self.hysteresis, self.dwell));
        self.publish(&gauges);
    }
}

impl ShedGauge {
    fn observe(&mut self, now: Micros, load: Percent, hysteresis: Percent, dwell: Micros) {
        let Some(enter) = self.enter else { return };
        let leave = enter.millionths().saturating_sub(hysteresis.millionths());
        if load >= enter {
            (self.is_shed, self.low_since) = (true, None);
        } else if load.millionths() >= leave {
            self.low_since = None;
        } else {
            // A clock that steps back restarts the dwell time.
            let since = self.low_since.unwrap_or(now).min(now);
            self.low_since = Some(since);
            self.is_shed &= now.saturating_sub(since) < dwell;
        }
    }
}

impl fmt::Debug for LoadShedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LoadShedder({:b})", self.shed.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u64) -> Percent {
        Percent::from_ratio(percent, 100)
    }

    #[test]
    fn classes_are_shed_in_order_and_admitted_after_the_dwell_time() {
        let shedder = LoadShedder::new([None, Some(percent(90)), Some(percent(80))]).unwrap();
        for (second, load, expected) in [
            (0, 79, [false, false, false]),
            (1, 80, [false, false, true]),
            (2, 95, [false, true, true]),
            (3, 85, [false, true, true]),
            (4, 79, [false, true, true]),
            (8, 79, [false, true, true]),
            (9, 79, [false, false, true]),
            (10, 69, [false, false, true]),
            (12, 75, [false, false, true]), // back above the lower threshold: the dwell time restarts
            (13, 69, [false, false, true]),
            (17, 69, [false, false, true]),
            (18, 69, [false, false, false]),
        ] {
            let load = LoadReading { share: Some(percent(load)), ..LoadReading::default() };
            shedder.on_load(Micros::from_secs(second), load);
            assert_eq!([0, 1, 2].map(|class| shedder.is_shed(class)), expected, "at {second}s");
        }
        assert!(!shedder.is_shed(40));
    }

    #[test]
    fn missing_signal_ends_shedding() {
        let shedder = LoadShedder::new([Some(percent(80))]).unwrap();
        let load = LoadReading { share: Some(percent(99)), ..LoadReading::default() };
        shedder.on_load(Micros::from_secs(1), load);
        assert!(shedder.is_shedding());
        shedder.on_load(Micros::from_secs(2), LoadReading::default());
        shedder.on_load(Micros::from_secs(7), LoadReading::default());
        assert!(!shedder.is_shedding());
    }

    #[test]
    fn rejects_important_class_that_is_shed_first() {
        assert!(LoadShedder::new([Some(percent(80)), None, Some(percent(90))]).is_err());
        assert!(LoadShedder::new([Some(percent(80)), Some(percent(80))]).is_ok());
        assert!(LoadShedder::new([None; 33]).is_err());
    }
}
