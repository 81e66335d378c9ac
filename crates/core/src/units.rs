//! Time in whole microseconds.

use core::{fmt, time::Duration};

/// A point in time or a duration in whole microseconds, always below 2^53 so that a double represents it exactly.
///
/// Points in time count from an origin that the store chooses (the Unix epoch in Tidegate's stores).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(u64);

impl Micros {
    /// Zero duration, or the origin of the time axis.
    pub const ZERO: Self = Self(0);
    /// The largest value: 2^53 − 1 µs, about 285 years.
    pub const MAX: Self = Self(LARGEST_EXACT);

    /// A value in microseconds, at most [`Micros::MAX`].
    #[inline]
    pub const fn new(micros: u64) -> Self {
        Self(if micros > LARGEST_EXACT { LARGEST_EXACT } else { micros })
    }

    /// A value in milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Self::new(millis.saturating_mul(1_000))
    }

    /// A value in seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Self::new(secs.saturating_mul(1_000_000))
    }

    /// The number of microseconds.
    #[inline]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// `self + other`, at most [`Micros::MAX`].
    #[inline]
    #[must_use]
    pub const fn saturating_add(self, other: Self) -> Self {
        Self::new(self.0 + other.0)
    }

    /// `self - other`, at least zero.
    #[inline]
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the duration for display: rounded up to a readable precision.
    ///
    /// ```
    /// use tidegate_core::Micros;
    ///
    /// assert_eq!(Micros::new(3_599_999_963).rounded().to_string(), "1h");
    /// assert_eq!(Micros::from_secs(5_000).rounded().to_string(), "1h 24min");
    /// ```
    pub const fn rounded(self) -> Rounded {
        Rounded(self)
    }

    /// Converts to a [`Duration`].
    pub const fn to_duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

/// The largest integer below which a double represents every integer exactly: 2^53 − 1.
pub const LARGEST_EXACT: u64 = (1 << 53) - 1;

/// Rounds up, so that a wait is never shortened.
impl From<Duration> for Micros {
    fn from(duration: Duration) -> Self {
        let micros = duration.as_nanos().div_ceil(1_000);
        Self::new(u64::try_from(micros).unwrap_or(LARGEST_EXACT))
    }
}

impl From<Micros> for Duration {
    fn from(micros: Micros) -> Self {
        micros.to_duration()
    }
}

/// Prints in the largest unit that is exact: `1min`, `100ms`, `1500us`.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let (name, size) = PERIOD_UNITS
            .iter()
            .rev()
            .find(|(_, size)| self.0.is_multiple_of(*size))
            .unwrap_or(&PERIOD_UNITS[0]);
        write!(f, "{}{name}", self.0 / size)
    }
}

/// A duration for display, in at most two units; see [`Micros::rounded`].
///
/// It is rounded up, so that a retry after it is never too early: to a millisecond below a second, a tenth of a
/// second below ten seconds, a second below an hour, a minute below a day, an hour below a week, and a day above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounded(Micros);

/// Durations below the first number of each pair are rounded up to a multiple of the second.
const ROUNDING_STEPS: [(u64, u64); 6] = [
    (1_000, 1),
    (SECOND, 1_000),
    (10 * SECOND, SECOND / 10),
    (3_600 * SECOND, SECOND),
    (86_400 * SECOND, 60 * SECOND),
    (604_800 * SECOND, 3_600 * SECOND),
];
const SECOND: u64 = 1_000_000;
const DAY: u64 = 86_400 * SECOND;

impl fmt::Display for Rounded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let exact = self.0.get();
        let step = ROUNDING_STEPS.iter().find(|(below, _)| exact < *below).map_or(DAY, |(_, step)| *step);
        let micros = exact.div_ceil(step) * step;
        let tenths = micros % SECOND / (SECOND / 10);
        if micros > SECOND && tenths > 0 {
            return write!(f, "{}.{tenths}s", micros / SECOND);
        }
        // The largest unit that fits at least once, and the next smaller one.
        let index = PERIOD_UNITS.iter().rposition(|(_, size)| micros >= *size);
        let Some(index) = index else { return f.write_str("0s") };
        let (name, size) = PERIOD_UNITS[index];
        write!(f, "{}{name}", micros / size)?;
        match PERIOD_UNITS[..index].last() {
            Some((smaller, part)) if micros % size >= *part => {
                write!(f, " {}{smaller}", micros % size / part)
            }
            _ => Ok(()),
        }
    }
}

/// The units in which periods are printed, smallest first.
pub(crate) const PERIOD_UNITS: [(&str, u64); 7] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
    ("w", 604_800_000_000),
];

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn display_uses_the_largest_exact_unit() {
        for (micros, text) in [
            (0, "0s"),
            (1, "1us"),
            (1_500, "1500us"),
            (100_000, "100ms"),
            (60_000_000, "1min"),
            (90_000_000, "90s"),
        ] {
            assert_eq!(Micros::new(micros).to_string(), text);
        }
    }

    #[test]
    fn rounded_display_has_two_units_and_rounds_up() {
        for (micros, text) in [
            (0, "0s"),
            (1, "1us"),
            (999, "999us"),
            (1_001, "2ms"),
            (49_999, "50ms"),
            (999_001, "1s"),
            (1_000_001, "1.1s"),
            (2_500_000, "2.5s"),
            (9_900_001, "10s"),
            (10_000_001, "11s"),
            (59_999_999, "1min"),
            (90_000_000, "1min 30s"),
            (3_599_000_001, "1h"),
            (3_600_000_001, "1h 1min"),
            (86_400_000_000, "1d"),
            (86_400_000_001, "1d 1h"),
            (604_800_000_001, "1w 1d"),
        ] {
            assert_eq!(Micros::new(micros).rounded().to_string(), text, "{micros}");
        }
        assert!(Micros::MAX.rounded().to_string().starts_with("14892w"));
    }

    #[test]
    fn micros_arithmetic_saturates() {
        assert_eq!(Micros::MAX.saturating_add(Micros::MAX), Micros::MAX);
        assert_eq!(Micros::ZERO.saturating_sub(Micros::MAX), Micros::ZERO);
        assert_eq!(Micros::from(Duration::MAX), Micros::MAX);
        assert_eq!(Micros::from(Duration::from_nanos(1)), Micros::new(1));
    }
}
