//! A percentage: `50%`.

use crate::setting::SettingError;
use alloc::format;
use core::{fmt, str::FromStr};

/// A percentage from 0 to 100, in millionths of the whole.
///
/// ```
/// use tidegate_core::Percent;
///
/// let half: Percent = "50%".parse()?;
/// assert!(half.is_reached_by(3, 6) && !half.is_reached_by(2, 6));
/// assert_eq!(half.apply(7), 3);
/// assert!("120%".parse::<Percent>().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(u32);

impl Percent {
    /// 0 %.
    pub const ZERO: Self = Self(0);
    /// 100 %.
    pub const FULL: Self = Self(Self::MILLION);

    const MILLION: u32 = 1_000_000;

    /// A percentage from 0 to 100, rounded to a millionth of the whole.
    pub fn new(percent: f64) -> Result<Self, SettingError> {
        if !(0.0..=100.0).contains(&percent) {
            return Err(SettingError::new(
                format!("a percentage of {percent} is out of range"),
                "give a number from 0 to 100",
            ));
        }
        Ok(Self((percent * f64::from(Self::MILLION / 100) + 0.5) as u32))
    }

    /// `part` as a percentage of `whole`: at most 100 %, and 0 % when `whole` is zero.
    pub fn from_ratio(part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::ZERO;
        }
        let millionths = u128::from(part) * u128::from(Self::MILLION) / u128::from(whole);
        u32::try_from(millionths).map_or(Self::FULL, |millionths| Self(millionths.min(Self::MILLION)))
    }

    /// A percentage in millionths; at most 100 %.
    pub const fn from_millionths(millionths: u32) -> Self {
        Self(if millionths > Self::MILLION { Self::MILLION } else { millionths })
    }

    /// The percentage in millionths.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// The percentage as a number from 0 to 1.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / f64::from(Self::MILLION)
    }

    /// This percentage of `whole`, rounded down.
    pub fn apply(self, whole: u64) -> u64 {
        crate::math::mul_div_floor(whole, u64::from(self.0), u64::from(Self::MILLION))
    }

    /// Whether `part` is at least this percentage of `whole`, without rounding. If `whole` is zero, only 0 % is
    /// reached.
    pub fn is_reached_by(self, part: u64, whole: u64) -> bool {
        u128::from(part) * u128::from(Self::MILLION) >= u128::from(self.0) * u128::from(whole)
            && (whole > 0 || self == Self::ZERO)
    }

    /// The difference to 100 %.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(Self::MILLION - self.0)
    }
}

/// Parses `50%` and `0.1 %`.
impl FromStr for Percent {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let number = text.trim().strip_suffix('%').map(str::trim_end);
        match number.and_then(|number| number.parse().ok()) {
            Some(percent) => Self::new(percent),
            None => Err(SettingError::new(
                format!("invalid percentage `{text}`"),
                "write a number and `%`, as in `50%`",
            )),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 10_000, self.0 % 10_000);
        match rest {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{rest:04}").trim_end_matches('0')),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn percent_text_round_trips() {
        for text in ["0%", "0.0001%", "0.1%", "50%", "99.4%", "100%"] {
            assert_eq!(text.parse::<Percent>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn parse_rejects_invalid_percentages() {
        for text in ["", "%", "50", "-1%", "100.1%", "NaN%", "inf%", "half"] {
            assert!(text.parse::<Percent>().is_err(), "{text}");
        }
    }

    #[test]
    fn percent_compares_without_rounding() {
        let third = Percent::from_ratio(1, 3);
        assert!(third.is_reached_by(1, 3) && third < Percent::new(33.34).unwrap());
        assert!(!Percent::new(33.34).unwrap().is_reached_by(1, 3));
        assert!(Percent::FULL.is_reached_by(u64::MAX, u64::MAX));
        assert!(!Percent::new(1.0).unwrap().is_reached_by(0, 0) && Percent::ZERO.is_reached_by(0, 0));
        assert_eq!(
            (Percent::FULL.apply(u64::MAX), Percent::from_ratio(7, 5), Percent::ZERO.complement()),
            (u64::MAX, Percent::FULL, Percent::FULL)
        );
    }
}
