//! Parses and formats times: `12.5ms`, `2min`, or a plain number of seconds.

use std::{error, fmt};
use tidegate_core::{Micros, QuotaError};

/// An invalid time, with the fix.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TimeError {
    pub(crate) problem: String,
    pub(crate) fix: String,
}

impl From<QuotaError> for TimeError {
    fn from(error: QuotaError) -> Self {
        Self { problem: error.problem().into(), fix: error.fix().into() }
    }
}

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.problem, self.fix)
    }
}

impl error::Error for TimeError {}

/// Units in microseconds.
const MILLISECOND: u64 = 1_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;
pub(crate) const MINUTE: u64 = 60 * SECOND;
pub(crate) const HOUR: u64 = 60 * MINUTE;
pub(crate) const DAY: u64 = 24 * HOUR;

/// The number of decimals of a second in microseconds.
const MICROSECOND_DIGITS: usize = 6;

/// Parses a time. A bare number is in seconds, as in most logs; digits below a microsecond are truncated.
pub(crate) fn parse(text: &str) -> Result<Micros, TimeError> {
    if !text.ends_with(|last: char| last.is_ascii_digit()) {
        return Ok(text.parse()?);
    }
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_number = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let truncated = if is_number { &fraction[..fraction.len().min(MICROSECOND_DIGITS)] } else { fraction };
    Ok(format!("{whole}.{truncated}s").parse()?)
}

/// Parses a duration above zero.
pub(crate) fn parse_length(text: &str) -> Result<Micros, TimeError> {
    match parse(text)? {
        Micros::ZERO => {
            Err(TimeError { problem: "duration of zero".into(), fix: "use a duration above zero".into() })
        }
        length => Ok(length),
    }
}

/// A label for a time on an axis of length `longest`: `250ms`, `1.5s`, `0:20`, `1:05:00`, `3d 06:00`.
pub(crate) fn axis_label(at: Micros, longest: Micros) -> String {
    let micros = at.get();
    let seconds = micros / SECOND;
    let (day, hours, minutes) = (seconds / 86_400, seconds / 3_600, seconds / 60);
    let (hour, minute, second) = (hours % 24, minutes % 60, seconds % 60);
    match longest.get() {
        longest if longest < MILLISECOND => format!("{micros}us"),
        longest if longest < SECOND => format!("{}ms", micros as f64 / 1e3),
        longest if longest < MINUTE => format!("{}s", micros as f64 / 1e6),
        longest if longest < HOUR => format!("{minutes}:{second:02}"),
        longest if longest < DAY => format!("{hours}:{minute:02}:{second:02}"),
        _ => format!("{day}d {hour:02}:{minute:02}"),
    }
}

/// Formats a duration: exact if that is short, otherwise with three digits.
pub(crate) fn format_rough(length: Micros) -> String {
    let exact = length.to_string();
    if exact.len() <= 5 {
        return exact;
    }
    let (unit, name) = match length.get() {
        micros if micros < 999_500 => (MILLISECOND, "ms"),
        micros if micros < 99_950_000 => (SECOND, "s"),
        micros if micros < 5_997_000_000 => (MINUTE, "min"),
        _ => (HOUR, "h"),
    };
    let value = length.get() as f64 / unit as f64;
    let places = match value {
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    let digits = format!("{value:.places$}");
    let digits = if places > 0 { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits}{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_parsed_in_all_units() {
        for (text, micros) in [
            ("12.5ms", 12_500),
            ("1s", 1_000_000),
            ("0.25", 250_000),
            ("2min", 120_000_000),
            ("1_000us", 1_000),
            ("1700000000.123456789", 1_700_000_000_123_456),
        ] {
            assert_eq!(parse(text), Ok(Micros::new(micros)), "{text}");
        }
    }

    #[test]
    fn format_rough_is_short() {
        for (micros, text) in [
            (1_000, "1ms"),
            (998_123, "998ms"),
            (999_999, "1s"),
            (59_800_000, "59.8s"),
            (59_999_999, "60s"),
            (1_234_567, "1.23s"),
            (100_000_001, "1.67min"),
            (86_400_000_001, "24h"),
        ] {
            assert_eq!(format_rough(Micros::new(micros)), text);
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        let endless = "1".repeat(40);
        for text in ["", "s", "-1s", "_", "_s", "1.", "1.2.3", "5x", "400000h0", "9999999d", endless.as_str()]
        {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
