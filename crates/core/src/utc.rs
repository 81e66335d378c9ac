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
    /// The microseconds from 1 January 1970 to a time in RFC 3339 and UTC, as in `2026-11-20T17:00:00Z`. The fraction, the seconds
    /// and the time of day may be absent: `2026-11-20` is its midnight.
    pub fn parse_micros(text: &str) -> Option<Micros> {
        let (date, time) = match text.split_once(['T', 't', ' ']) {
            Some((date, time)) => (date, time.strip_suffix(['Z', 'z'])?),
            None => (text, "00:00"),
        };
        let [year, month, day] = parse_parts(date, '-', [4, 2, 2])?;
        let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
        let [hour, minute, second] = match time.len() {
            5 => parse_parts(time, ':', [2, 2]).map(|[hour, minute]| [hour, minute, 0])?,
            _ => parse_parts(time, ':', [2, 2, 2])?,
        };
        let is_fraction = (1..=9).contains(&fraction.len()) && fraction.bytes().all(|it| it.is_ascii_digit());
        if hour > 23 || minute > 59 || second > 59 || !is_fraction {
            return None;
        }
        let micros = fraction.bytes().chain(core::iter::repeat(b'0')).take(6);
        let micros = micros.fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'));
        let days = Self::days_since_epoch(year, month, day)?;
        let seconds = days * 86_400 + hour * 3_600 + minute * 60 + second;
        let micros = seconds.checked_mul(1_000_000)?.checked_add(micros)?;
        (micros <= Micros::MAX.get()).then(|| Micros::new(micros))
    }

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

/// Numbers with these counts of digits.
fn parse_parts<const N: usize>(text: &str, separator: char, lens: [usize; N]) -> Option<[u64; N]> {
    let mut parts = text.split(separator);
    let mut numbers = [0; N];
    for (number, len) in numbers.iter_mut().zip(lens) {
        let part = parts.next()?;
        let is_number = part.len() == len && part.bytes().all(|it| it.is_ascii_digit());
        *number = part.parse().ok().filter(|_| is_number)?;
    }
    parts.next().is_none().then_some(numbers)
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
    fn times_are_parsed_as_they_are_printed() {
        for micros in [0, 1, 951_827_696_789_012, 4_107_542_399_999_999, Micros::MAX.get()] {
            let text = alloc::string::ToString::to_string(&Utc::from(Micros::new(micros)));
            assert_eq!(Utc::parse_micros(&text), Some(Micros::new(micros)), "{text}");
        }
        for (text, seconds) in [
            ("2000-02-29", Some(951_782_400)),
            ("2000-02-29T12:34Z", Some(951_827_640)),
            ("2000-02-29 12:34:56Z", Some(951_827_696)),
            ("2000-02-29t12:34:56.0z", Some(951_827_696)),
            ("2000-02-29T12:34:56", None),
            ("2000-02-29T12:34:56+01:00", None),
            ("2000-02-30", None),
            ("2000-2-9", None),
            ("2000-02-29T24:00:00Z", None),
            ("2000-02-29T12:34:56.Z", None),
            ("2000-02-29T+1:34:56Z", None),
            ("2999-01-01", None),
            ("Friday", None),
        ] {
            assert_eq!(Utc::parse_micros(text), seconds.map(Micros::from_secs), "{text}");
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
