//! Rates, sizes and times as nginx writes them.

use std::time::Duration;
use tidegate_core::{Micros, Quota, QuotaError, Rate};

/// `10r/s`, `30r/m`: a number of requests per second or minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RequestRate {
    pub(super) amount: u64,
    pub(super) unit: NginxRateUnit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NginxRateUnit {
    Second,
    Minute,
}

impl RequestRate {
    /// The default rate of nginx.
    pub(super) const DEFAULT: Self = Self { amount: 1, unit: NginxRateUnit::Second };

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (amount, per) = match (text.strip_suffix("r/s"), text.strip_suffix("r/m")) {
            (Some(amount), _) => (amount, NginxRateUnit::Second),
            (_, Some(amount)) => (amount, NginxRateUnit::Minute),
            _ => return None,
        };
        parse_integer(amount).filter(|amount| *amount > 0).map(|amount| Self { amount, unit: per })
    }

    fn to_rate(self) -> Rate {
        match self.unit {
            NginxRateUnit::Second => Quota::per_second(self.amount),
            NginxRateUnit::Minute => Quota::per_minute(self.amount),
        }
    }

    /// Converts `burst` and `delay` of `limit_req` to a leaky bucket.
    pub(super) fn quota(self, burst: u64, delay: u64) -> Result<Quota, QuotaError> {
        self.to_rate().leaky_bucket_with_delay(burst, delay.min(burst))
    }

    /// Returns the longest time that an admitted request waits.
    pub(super) fn max_wait(self, burst: u64, delay: u64) -> Duration {
        let waiting = burst.saturating_sub(delay);
        let period: u64 = match self.unit {
            NginxRateUnit::Second => 1_000,
            NginxRateUnit::Minute => 60_000,
        };
        let wait = waiting.saturating_mul(period).div_ceil(self.amount);
        // A year, which fits into a policy.
        Duration::from_millis(wait.min(365 * 86_400_000))
    }

    /// Returns the thousandths of a request per second that nginx counts, if it rounds the configured rate down.
    pub(super) fn rounded_rate(self) -> Option<u64> {
        match self.unit {
            NginxRateUnit::Second => None,
            NginxRateUnit::Minute => {
                let thousandths = self.amount.checked_mul(1_000)?;
                (thousandths % 60 != 0).then_some(thousandths / 60)
            }
        }
    }
}

/// Parses an integer of digits only.
pub(super) fn parse_integer(text: &str) -> Option<u64> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number)
}

/// Parses a number of bytes: `500`, `10k`, `1m`, `1g`.
pub(super) fn parse_size(text: &str) -> Option<u64> {
    let (number, factor) = match text.chars().next_back()? {
        'k' | 'K' => (&text[..text.len() - 1], 1 << 10),
        'm' | 'M' => (&text[..text.len() - 1], 1 << 20),
        'g' | 'G' => (&text[..text.len() - 1], 1 << 30),
        _ => (text, 1),
    };
    parse_integer(number)?.checked_mul(factor)
}

/// Parses a duration: `60`, `30s`, `500ms`, `1m 30s`.
pub(super) fn parse_time(text: &str) -> Option<Duration> {
    const UNITS: [(&str, u64); 6] =
        [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000), ("w", 604_800_000)];
    let (mut rest, mut all) = (text.trim(), 0_u64);
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number = parse_integer(&rest[..digits])?;
        rest = &rest[digits..];
        let unit = match UNITS.iter().find(|(unit, _)| rest.starts_with(unit)) {
            Some((unit, each)) => {
                rest = rest[unit.len()..].trim_start();
                *each
            }
            None if rest.is_empty() => 1_000,
            None => return None,
        };
        all = all.checked_add(number.checked_mul(unit)?)?;
    }
    // Longer durations do not fit into a policy.
    (Micros::from(Duration::from_millis(all)) < Micros::MAX).then_some(Duration::from_millis(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_whole_numbers_of_requests() {
        let rate = |amount, per| Some(RequestRate { amount, unit: per });
        let cases = [
            ("10r/s", rate(10, NginxRateUnit::Second)),
            ("30r/m", rate(30, NginxRateUnit::Minute)),
            ("0r/s", None),
            ("1.5r/s", None),
            ("10", None),
            ("r/s", None),
            ("10r/h", None),
            ("-1r/s", None),
            ("99999999999999999999r/s", None),
        ];
        for (text, expected) in cases {
            assert_eq!(RequestRate::parse(text), expected, "{text}");
        }
    }

    #[test]
    fn sizes_and_times_have_units() {
        let sizes =
            [("500", Some(500)), ("10k", Some(10_240)), ("1M", Some(1 << 20)), ("k", None), ("1x", None)];
        for (text, expected) in sizes {
            assert_eq!(parse_size(text), expected, "{text}");
        }
        let times =
            [("60", Some(60_000)), ("1m30s", Some(90_000)), ("500ms", Some(500)), ("1m 5", Some(65_000))];
        for (text, expected) in times {
            assert_eq!(parse_time(text), expected.map(Duration::from_millis), "{text}");
        }
        for text in ["", "s", "1y", "5 5", "99999999999999w"] {
            assert_eq!(parse_time(text), None, "{text}");
        }
    }
}
