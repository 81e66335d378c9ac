//! A point in time as a date and a time of day.

use crate::Micros;
use core::fmt;

/// A point in time in UTC, in the Gregorian calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    /// `2015`
    pub year: u64,
    /// 1 to 12.
    pub month: u64,
    /// 1 to 31.
    pub day: u64,
    /// 0 to 23.
    pub hour: u64,
    /// 0 to 59.
    pub minute: u64,
    /// 0 to 59.
    pub second: u64,
    /// 0 to 999,999.
    pub microsecond: u64,
}

impl Utc {
    /// The days from 1 January 1970 to this date; `None` if the date does not exist in the years 1970 to 9999.
    pub fn days_since_epoch(year: u64, month: u64, day: u64) -> Option<u64> {
        let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let last = match month {
            2 => 28 + u64::from(is_leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=last).contains(&day) {
            return None;
        }
        // Years start in March here, so that a leap day is the last day of its year.
        let year = if month < 3 { year - 1 } else { year };
        let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
        (365 * year + year / 4 - year / 100 + year / 400 + day_of_year).checked_sub(DAYS_BEFORE_EPOCH)
    }
}

/// Days from 1 March 0000 to 1 January 1970.
const DAYS_BEFORE_EPOCH: u64 = 719_468;

/// Converts microseconds since 1 January 1970, 00:00 UTC.
impl From<Micros> for Utc {
    fn from(time: Micros) -> Self {
        let seconds = time.get() / 1_000_000;
        // Days since 1 March 0000, so that a leap day is the last day of its year.
        let days = seconds / 86_400 + DAYS_BEFORE_EPOCH;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        Self {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day,
            hour: seconds / 3_600 % 24,
            minute: seconds / 60 % 60,
            second: seconds % 60,
            microsecond: time.get() % 1_000_000,
        }
    }
}

/// Prints as in RFC 3339: `2000-02-29T12:34:56.789012Z`; with `{:.0}`, without a fraction.
impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { year, month, day, hour, minute, second, microsecond } = self;
        write!(f, "{year}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        match f.precision() {
            Some(0) => f.write_str("Z"),
            _ => write!(f, ".{microsecond:06}Z"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn micros_convert_to_utc_dates() {
        for (seconds, date, time) in [
            (0, [1970, 1, 1], [0, 0, 0]),
            (951_782_400 - 1, [2000, 2, 28], [23, 59, 59]),
            (951_827_696, [2000, 2, 29], [12, 34, 56]),
            (951_868_800, [2000, 3, 1], [0, 0, 0]),
            (1_431_857_103, [2015, 5, 17], [10, 5, 3]),
            (1_767_225_599, [2025, 12, 31], [23, 59, 59]),
            (4_107_542_400 - 1, [2100, 2, 28], [23, 59, 59]),
            (4_107_542_400, [2100, 3, 1], [0, 0, 0]),
        ] {
            let utc = Utc::from(Micros::from_secs(seconds));
            assert_eq!(([utc.year, utc.month, utc.day], [utc.hour, utc.minute, utc.second]), (date, time));
        }
    }

    #[test]
    fn days_and_dates_round_trip() {
        // Up to the last day that `Micros` represents.
        for days in 0..Micros::MAX.get() / 86_400_000_000 {
            let utc = Utc::from(Micros::from_secs(days * 86_400));
            assert_eq!(Utc::days_since_epoch(utc.year, utc.month, utc.day), Some(days));
        }
    }

    #[test]
    fn invalid_dates_are_rejected() {
        for (year, month, day) in [
            (1969, 12, 31),
            (2015, 2, 29),
            (1900, 2, 29),
            (2015, 4, 31),
            (2015, 13, 1),
            (2015, 1, 0),
            (10_000, 1, 1),
        ] {
            assert_eq!(Utc::days_since_epoch(year, month, day), None, "{year}-{month}-{day}");
        }
    }
}
