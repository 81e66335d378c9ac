//! The load in four levels, with hysteresis.
//!
//! ```text
//!   load      enter ─ ─ ─ ─ ─ ─┌───╲─ ─ ─ ─ ─ ─ ─ ─ ─
//!                              │    ╲   ╱╲
//!             leave ─ ─ ─ ─ ─ ─│─ ─ ─╲─╱─ ╲───────────
//!   level     Normal ──────────┘ Busy       └ after the dwell: Normal
//! ```
//!
//! The level rises at once, over several levels if needed. It falls one level at a time, each after the load
//! has stayed below the lower threshold of the level for the dwell time.

use std::{fmt, str::FromStr};
use tidegate_core::{Micros, Percent, SettingError};

/// The level of load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LoadLevel {
    /// There is spare capacity.
    #[default]
    Relaxed,
    /// Normal operation.
    Normal,
    /// Leave out work that can wait.
    Busy,
    /// Leave out all but essential work.
    Critical,
}

impl LoadLevel {
    /// All levels, from lowest to highest.
    pub const ALL: [Self; 4] = [Self::Relaxed, Self::Normal, Self::Busy, Self::Critical];

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Relaxed => "relaxed",
            Self::Normal => "normal",
            Self::Busy => "busy",
            Self::Critical => "critical",
        }
    }

    fn next_lower(self) -> Self {
        match self {
            Self::Relaxed | Self::Normal => Self::Relaxed,
            Self::Busy => Self::Normal,
            Self::Critical => Self::Busy,
        }
    }
}

impl fmt::Display for LoadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LoadLevel {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.trim() {
            "relaxed" => Ok(Self::Relaxed),
            "normal" => Ok(Self::Normal),
            "busy" => Ok(Self::Busy),
            "critical" => Ok(Self::Critical),
            _ => Err(SettingError::new(
                format!("unknown load level `{text}`"),
                "use one of relaxed, normal, busy, critical",
            )),
        }
    }
}

/// The thresholds of the levels.
///
/// ```
/// use tidegate_overload::{LoadLevel, LoadLevels};
/// use tidegate_core::Micros;
///
/// let levels = LoadLevels::default()
///     .with_threshold(LoadLevel::Busy, "80%".parse()?, "60%".parse()?)?
///     .dwell(Micros::from_secs(10));
/// assert_eq!(levels.to_string(), "normal 50%/40%, busy 80%/60%, critical 90%/80%, dwell 10s");
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadLevels {
    /// Of `Normal`, `Busy` and `Critical`.
    thresholds: [LevelThreshold; 3],
    dwell: Micros,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LevelThreshold {
    enter: Percent,
    leave: Percent,
}

impl LoadLevels {
    /// The default load from which the level is normal, busy and critical.
    pub const DEFAULT_THRESHOLDS: [Percent; 3] = [
        Percent::from_millionths(500_000),
        Percent::from_millionths(750_000),
        Percent::from_millionths(900_000),
    ];
    /// How far the load must fall below a threshold, by default.
    pub const DEFAULT_HYSTERESIS: Percent = Percent::from_millionths(100_000);
    /// For how long, by default.
    pub const DEFAULT_DWELL: Micros = Micros::from_secs(5);

    /// Sets the thresholds at which a level starts and below which it ends. `leave` must be lower than
    /// `enter`, and both must rise with the level.
    pub fn with_threshold(
        mut self,
        level: LoadLevel,
        enter: Percent,
        leave: Percent,
    ) -> Result<Self, SettingError> {
        let index = match level {
            LoadLevel::Relaxed => {
                return Err(SettingError::new(
                    "relaxed has no thresholds",
                    "set those of normal: below them the level is relaxed",
                ));
            }
            LoadLevel::Normal => 0,
            LoadLevel::Busy => 1,
            LoadLevel::Critical => 2,
        };
        self.thresholds[index] = LevelThreshold { enter, leave };
        self.validate()
    }

    /// Creates levels with the thresholds of normal, busy and critical, as [`with_threshold`](Self::with_threshold) sets them.
    pub fn from_thresholds(thresholds: [(Percent, Percent); 3]) -> Result<Self, SettingError> {
        let thresholds = thresholds.map(|(enter, leave)| LevelThreshold { enter, leave });
        Self { thresholds, ..Self::default() }.validate()
    }

    fn validate(self) -> Result<Self, SettingError> {
        let levels = LoadLevel::ALL.into_iter().skip(1);
        if let Some((level, at)) = levels.zip(self.thresholds).find(|(_, at)| at.leave >= at.enter) {
            return Err(SettingError::new(
                format!("{level} starts at {} and ends at {}", at.enter, at.leave),
                "set the lower threshold below the upper one to prevent flapping",
            ));
        }
        let [normal, busy, critical] = self.thresholds;
        let in_order =
            |low: LevelThreshold, high: LevelThreshold| low.enter < high.enter && low.leave <= high.leave;
        if !in_order(normal, busy) || !in_order(busy, critical) {
            return Err(SettingError::new(
                format!("thresholds out of order: {self}"),
                "give thresholds that rise from normal to busy to critical",
            ));
        }
        Ok(self)
    }

    /// Sets how long the load must stay low before the level falls by one; five seconds by default.
    #[must_use]
    pub fn dwell(self, dwell: Micros) -> Self {
        Self { dwell, ..self }
    }

    /// The thresholds of a level; `Relaxed` has none.
    fn threshold(&self, level: LoadLevel) -> Option<LevelThreshold> {
        let [normal, busy, critical] = self.thresholds;
        match level {
            LoadLevel::Relaxed => None,
            LoadLevel::Normal => Some(normal),
            LoadLevel::Busy => Some(busy),
            LoadLevel::Critical => Some(critical),
        }
    }

    /// The highest level that this load enters.
    fn highest_entered(&self, load: Percent) -> LoadLevel {
        let enters =
            |level: &LoadLevel| self.threshold(*level).is_none_or(|threshold| load >= threshold.enter);
        LoadLevel::ALL.into_iter().rev().find(enters).unwrap_or_default()
    }
}

/// Normal from 50 %, busy from 75 %, critical from 90 %, each down to 10 % less.
impl Default for LoadLevels {
    fn default() -> Self {
        let hysteresis = Self::DEFAULT_HYSTERESIS.millionths();
        let thresholds = Self::DEFAULT_THRESHOLDS.map(|enter| LevelThreshold {
            enter,
            leave: Percent::from_millionths(enter.millionths().saturating_sub(hysteresis)),
        });
        Self { thresholds, dwell: Self::DEFAULT_DWELL }
    }
}

impl fmt::Display for LoadLevels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for level in LoadLevel::ALL {
            if let Some(LevelThreshold { enter, leave }) = self.threshold(level) {
                write!(f, "{level} {enter}/{leave}, ")?;
            }
        }
        write!(f, "dwell {}", self.dwell)
    }
}

/// Tracks the level of a load.
///
/// ```
/// use tidegate_overload::{LoadGauge, LoadLevel, LoadLevels};
/// use tidegate_core::Micros;
///
/// let mut gauge = LoadGauge::new(LoadLevels::default());
/// let mut at = |second, load: &str| gauge.observe(Micros::from_secs(second), load.parse().unwrap());
/// assert_eq!(at(0, "80%"), LoadLevel::Busy);
/// assert_eq!(at(1, "70%"), LoadLevel::Busy); // not yet below the lower threshold
/// assert_eq!(at(2, "60%"), LoadLevel::Busy); // not yet for long enough
/// assert_eq!(at(7, "60%"), LoadLevel::Normal);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadGauge {
    levels: LoadLevels,
    level: LoadLevel,
    /// Since when the load has been below the lower threshold of the level.
    low_since: Option<Micros>,
}

impl LoadGauge {
    /// Creates a gauge at the level `Relaxed`.
    pub fn new(levels: LoadLevels) -> Self {
        Self { levels, level: LoadLevel::Relaxed, low_since: None }
    }

    /// Updates the level to the load at `now`, and returns it.
    pub fn observe(&mut self, now: Micros, load: Percent) -> LoadLevel {
        let entered = self.levels.highest_entered(load);
        if entered > self.level {
            self.level = entered;
            self.low_since = None;
            return self.level;
        }
        if self.levels.threshold(self.level).is_none_or(|threshold| load >= threshold.leave) {
            self.low_since = None;
            return self.level;
        }
        // A clock that steps back restarts the dwell time.
        let since = self.low_since.unwrap_or(now).min(now);
        self.low_since = Some(since);
        if now.saturating_sub(since) >= self.levels.dwell {
            self.level = self.level.next_lower();
            // The next level has its own dwell time.
            self.low_since =
                self.levels.threshold(self.level).filter(|threshold| load < threshold.leave).map(|_| now);
        }
        self.level
    }

    /// The level at the last update.
    pub fn level(&self) -> LoadLevel {
        self.level
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn percent(percent: u64) -> Percent {
        Percent::from_ratio(percent, 100)
    }

    #[test]
    fn level_rises_at_once_and_falls_stepwise() {
        let mut gauge = LoadGauge::new(LoadLevels::default());
        use LoadLevel::{Busy, Critical, Normal, Relaxed};
        for (second, load, level) in [
            (0, 0, Relaxed),
            (1, 49, Relaxed),
            (2, 50, Normal),
            (3, 45, Normal),
            (4, 100, Critical),
            (5, 0, Critical),
            (9, 0, Critical),
            (10, 0, Busy),
            (14, 0, Busy),
            (15, 0, Normal),
            (16, 40, Normal), // back at the threshold: the dwell time restarts
            (17, 39, Normal),
            (21, 39, Normal),
            (22, 39, Relaxed),
            (23, 39, Relaxed),
        ] {
            assert_eq!(gauge.observe(Micros::from_secs(second), percent(load)), level, "at {second}s");
        }
    }

    #[test]
    fn rejects_flapping_or_crossing_thresholds() {
        let levels = LoadLevels::default();
        for (level, enter, leave) in [
            (LoadLevel::Busy, 75, 75),
            (LoadLevel::Busy, 75, 80),
            (LoadLevel::Busy, 95, 65),
            (LoadLevel::Busy, 45, 42),
            (LoadLevel::Critical, 90, 60),
            (LoadLevel::Relaxed, 20, 10),
        ] {
            assert!(
                levels.with_threshold(level, percent(enter), percent(leave)).is_err(),
                "{level} {enter}/{leave}"
            );
        }
    }

    #[test]
    fn level_display_round_trips() {
        for level in LoadLevel::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        assert!("panic".parse::<LoadLevel>().is_err());
    }
}
