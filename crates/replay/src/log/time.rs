//! Timestamps of logs.

use tidegate_core::Utc;

/// The format of a timestamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeFormat {
    /// `17/May/2015:10:05:03 +0000`
    Common,
    /// `2015-05-17T10:05:03.125Z`
    Iso,
    /// `1431857103.125`
    Seconds,
    /// `1431857103125`
    Millis,
    /// Any of these: the size of a number decides whether it is in seconds, milliseconds or microseconds.
    Any,
}

/// Parses a timestamp to microseconds since the epoch.
pub(super) fn parse(form: TimeFormat, text: &[u8]) -> Option<u64> {
    match form {
        TimeFormat::Common => parse_common(text),
        TimeFormat::Iso => parse_iso(text),
        TimeFormat::Seconds => parse_decimal(text, 1_000_000),
        TimeFormat::Millis => parse_decimal(text, 1_000),
        TimeFormat::Any => match (text.get(2), text.get(4)) {
            (Some(b'/'), _) => parse_common(text),
            (_, Some(b'-')) => parse_iso(text),
            _ => parse_epoch(text),
        },
    }
}

/// The year 33658 in seconds: larger numbers are in smaller units.
const MAX_EPOCH_SECONDS: u64 = 1_000_000_000_000;

fn parse_epoch(text: &[u8]) -> Option<u64> {
    let whole = text.iter().position(|byte| matches!(byte, b'.' | b'e' | b'E')).unwrap_or(text.len());
    match parse_digits(&text[..whole])? {
        seconds if seconds < MAX_EPOCH_SECONDS / 10 => parse_decimal(text, 1_000_000),
        millis if millis < MAX_EPOCH_SECONDS * 100 => parse_decimal(text, 1_000),
        _ => parse_decimal(text, 1),
    }
}

const MONTHS: [&[u8; 3]; 12] =
    [b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"];

/// Parses `17/May/2015:10:05:03 +0000`; the default zone is UTC.
fn parse_common(text: &[u8]) -> Option<u64> {
    let [d, d2, b'/', m, m2, m3, b'/', year @ .., b':', h, h2, b':', min, min2, b':', s, s2] =
        text.get(..20)?
    else {
        return None;
    };
    let (month, _) = (1..).zip(MONTHS).find(|(_, name)| **name == [*m, *m2, *m3])?;
    let day = parse_two_digits(*d, *d2)?;
    let second = second_of_day(
        parse_two_digits(*h, *h2)?,
        parse_two_digits(*min, *min2)?,
        parse_two_digits(*s, *s2)?,
    )?;
    let behind = &text[20..];
    let (fraction, zone) = parse_fraction(behind)?;
    let zone = zone.strip_prefix(b" ").unwrap_or(zone);
    to_epoch_micros(
        Utc::days_since_epoch(parse_digits(year)?, month, day)?,
        second,
        fraction,
        parse_offset(zone)?,
    )
}

/// Parses `2015-05-17T10:05:03.125Z`, also with a space instead of the `T` and with `+02:00` instead of the `Z`.
fn parse_iso(text: &[u8]) -> Option<u64> {
    let [year @ .., b'-', m, m2, b'-', d, d2, b'T' | b' ' | b't', h, h2, b':', min, min2, b':', s, s2] =
        text.get(..19)?
    else {
        return None;
    };
    let (month, day) = (parse_two_digits(*m, *m2)?, parse_two_digits(*d, *d2)?);
    let second = second_of_day(
        parse_two_digits(*h, *h2)?,
        parse_two_digits(*min, *min2)?,
        parse_two_digits(*s, *s2)?,
    )?;
    let (fraction, zone) = parse_fraction(&text[19..])?;
    let zone = zone.strip_prefix(b" ").unwrap_or(zone);
    to_epoch_micros(
        Utc::days_since_epoch(parse_digits(year)?, month, day)?,
        second,
        fraction,
        parse_offset(zone)?,
    )
}

fn to_epoch_micros(days: u64, second: u64, micros: u64, offset: i64) -> Option<u64> {
    let seconds = i64::try_from(days * 86_400 + second).ok()?.checked_sub(offset)?;
    u64::try_from(seconds).ok()?.checked_mul(1_000_000)?.checked_add(micros)
}

/// Returns the second of the day. A leap second counts as the second before it.
fn second_of_day(hour: u64, minute: u64, second: u64) -> Option<u64> {
    (hour < 24 && minute < 60 && second <= 60).then(|| hour * 3_600 + minute * 60 + second.min(59))
}

/// Parses `.125` to microseconds, and returns the remaining bytes.
fn parse_fraction(text: &[u8]) -> Option<(u64, &[u8])> {
    let Some((b'.' | b',', rest)) = text.split_first() else { return Some((0, text)) };
    let end = rest.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let mut micros = 0;
    for place in 0..6 {
        micros = micros * 10 + rest[..end].get(place).map_or(0, |digit| u64::from(digit - b'0'));
    }
    (end > 0).then_some((micros, &rest[end..]))
}

/// Parses a zone offset to seconds east of UTC.
fn parse_offset(zone: &[u8]) -> Option<i64> {
    let (sign, hours, minutes) = match zone {
        b"" | b"Z" | b"z" | b"UTC" | b"GMT" => return Some(0),
        [sign @ (b'+' | b'-'), h, h2, m, m2] | [sign @ (b'+' | b'-'), h, h2, b':', m, m2] => {
            (sign, parse_two_digits(*h, *h2)?, parse_two_digits(*m, *m2)?)
        }
        _ => return None,
    };
    let seconds = i64::try_from(hours * 3_600 + minutes * 60).ok()?;
    Some(if *sign == b'-' { -seconds } else { seconds })
}

#[inline]
fn parse_two_digits(tens: u8, ones: u8) -> Option<u64> {
    (tens.is_ascii_digit() && ones.is_ascii_digit())
        .then(|| u64::from(tens - b'0') * 10 + u64::from(ones - b'0'))
}

/// Parses an integer.
#[inline]
pub(super) fn parse_digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 18 {
        return None;
    }
    let mut number = 0_u64;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        number = number * 10 + u64::from(digit);
    }
    Some(number)
}

/// Parses a number with an optional fraction, and multiplies it.
pub(super) fn parse_decimal(text: &[u8], times: u64) -> Option<u64> {
    let dot = text.iter().position(|byte| *byte == b'.');
    let Some(dot) = dot else {
        return match parse_digits(text) {
            Some(number) => number.checked_mul(times),
            None => parse_scientific(text, times),
        };
    };
    let whole = parse_digits(&text[..dot])?.checked_mul(times)?;
    let mut rest = 0;
    let mut unit = times;
    for byte in &text[dot + 1..] {
        if !byte.is_ascii_digit() {
            return parse_scientific(text, times);
        }
        unit /= 10;
        rest += u64::from(byte - b'0') * unit;
    }
    whole.checked_add(rest)
}

/// Parses scientific notation, for example `1.431857103e9`.
fn parse_scientific(text: &[u8], times: u64) -> Option<u64> {
    let number: f64 = str::from_utf8(text).ok()?.parse().ok()?;
    let number = number * times as f64;
    (0.0..9.0e18).contains(&number).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2015-05-17 10:05:03 in UTC.
    const EXPECTED_MICROS: u64 = 1_431_857_103_000_000;

    #[test]
    fn parses_log_timestamps() {
        let cases: [(TimeFormat, &str, Option<u64>); 20] = [
            (TimeFormat::Common, "17/May/2015:10:05:03 +0000", Some(EXPECTED_MICROS)),
            (TimeFormat::Common, "17/May/2015:12:05:03 +0200", Some(EXPECTED_MICROS)),
            (TimeFormat::Common, "17/May/2015:10:05:03", Some(EXPECTED_MICROS)),
            (TimeFormat::Common, "17/May/2015:10:05:03.25 +0000", Some(EXPECTED_MICROS + 250_000)),
            (TimeFormat::Common, "17/Mai/2015:10:05:03 +0000", None),
            (TimeFormat::Common, "17/May/2015:25:05:03 +0000", None),
            (TimeFormat::Common, "17/May/2015", None),
            (TimeFormat::Iso, "2015-05-17T10:05:03Z", Some(EXPECTED_MICROS)),
            (TimeFormat::Iso, "2015-05-17T10:05:03.125Z", Some(EXPECTED_MICROS + 125_000)),
            (TimeFormat::Iso, "2015-05-17 05:05:03-05:00", Some(EXPECTED_MICROS)),
            (TimeFormat::Iso, "2015-05-17T10:05:60Z", Some(EXPECTED_MICROS + 56_000_000)),
            (TimeFormat::Seconds, "1431857103.125", Some(EXPECTED_MICROS + 125_000)),
            (TimeFormat::Millis, "1431857103125", Some(EXPECTED_MICROS + 125_000)),
            (TimeFormat::Any, "1431857103.1254567", Some(EXPECTED_MICROS + 125_456)),
            (TimeFormat::Any, "1431857103125", Some(EXPECTED_MICROS + 125_000)),
            (TimeFormat::Any, "1431857103125456", Some(EXPECTED_MICROS + 125_456)),
            (TimeFormat::Any, "1.431857103e9", Some(EXPECTED_MICROS)),
            (TimeFormat::Any, "17/May/2015:10:05:03 +0000", Some(EXPECTED_MICROS)),
            (TimeFormat::Any, "2015-05-17T10:05:03Z", Some(EXPECTED_MICROS)),
            (TimeFormat::Any, "yesterday", None),
        ];
        for (form, text, expected) in cases {
            assert_eq!(parse(form, text.as_bytes()), expected, "{text}");
        }
    }
}
