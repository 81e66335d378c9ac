//! Parses quotas such as `100/min burst 20`. Every error has a position.

use super::{Quota, QuotaError, Rate, RateUnit, rate::BYTE_UNITS};
use crate::{
    algorithm::{AlgorithmKind, TokenBucket},
    math::gcd,
    time_zone::{CalendarPeriod, TimeZone},
    units::{LARGEST_EXACT, Micros},
};
use alloc::{
    format,
    string::{String, ToString as _},
    vec::Vec,
};
use core::ops::Range;

/// Parses a whole quota.
pub(super) fn parse_quota(text: &str) -> Result<Quota, QuotaError> {
    let mut reader = QuotaReader::new(text);
    let whole = |error: QuotaError| error.with_span(text, 0..text.trim_end().len());

    let amount = reader.parse_number("an amount, as in `100/min`")?;
    let unit = reader.parse_unit(amount)?;
    let written = reader.last_span();
    if reader.accept("at").is_some() {
        reader.expect("once", "write `3 at once`")?;
        reader.last_span = written;
        let limit = reader.to_integer(unit.amount)?;
        let quota = match reader.accept("lease") {
            None => Quota::concurrency(limit),
            Some(()) => {
                let lease = reader.parse_period("a lease duration, as in `lease 30s`")?;
                Quota::concurrency_with_lease(limit, lease.to_duration())
            }
        };
        let quota = quota.map_err(|error| error.with_last_span(&reader))?;
        return reader.expect_end().map(|()| quota);
    }

    if reader.accept("total").is_some() {
        reader.last_span = written;
        let limit = reader.to_integer(unit.amount)?;
        let quota =
            Quota::total_with_unit(limit, unit.unit).map_err(|error| error.with_last_span(&reader))?;
        return reader.expect_end().map(|()| quota);
    }

    let rate = reader.parse_rate(unit)?;
    rate.validate().map_err(whole)?;
    let month = reader.month.clone();
    let kind = match reader.parse_algorithm(rate)? {
        Some(kind) => kind.map_err(whole)?,
        None => AlgorithmKind::TokenBucket(
            <TokenBucket as crate::Algorithm>::parse(rate, &mut reader).map_err(whole)?,
        ),
    };
    if let (Some(month), false) = (month, matches!(kind, AlgorithmKind::CalendarWindow(_))) {
        let amount = rate.unit().display(rate.amount()).to_string();
        return Err(QuotaError::month_without_zone(&amount).with_span(text, month));
    }
    reader.expect_end().map(|()| kind.into())
}

/// Parses a time and nothing else.
pub(super) fn parse_time(text: &str) -> Result<Micros, QuotaError> {
    let mut reader = QuotaReader::new(text);
    let expected = "a time, as in `12.5ms` or `2min`";
    reader.skip_spaces();
    if !reader.rest().starts_with(|first: char| first.is_ascii_digit()) {
        let (word, span) = reader.peek();
        let problem =
            if word.is_empty() { format!("expected {expected}") } else { format!("`{word}` is not a time") };
        return Err(reader.error_at(span, problem, "write a number and a unit, as in `12.5ms` or `2min`"));
    }
    let time = reader.parse_period(expected)?;
    reader.expect_end().map(|()| time)
}

/// Reads the words of a quota from left to right, for the `parse` methods of the algorithms.
#[derive(Debug)]
pub struct QuotaReader<'a> {
    text: &'a str,
    position: usize,
    last_span: Range<usize>,
    /// The position of the period `month`, which only a window in a time zone supports.
    month: Option<Range<usize>>,
}

/// A decimal number as written: `mantissa / scale`.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    mantissa: u128,
    scale: u128,
}

#[derive(Clone, Copy, Debug)]
struct ScaledAmount {
    amount: Decimal,
    unit: RateUnit,
}

/// The names of the periods.
const PERIOD_NAMES: [(&[&str], u64); 7] = [
    (&["us", "µs", "usec", "microsecond", "microseconds"], 1),
    (&["ms", "msec", "millisecond", "milliseconds"], 1_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000),
    (&["min", "m", "mins", "minute", "minutes"], 60_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["w", "week", "weeks"], 604_800_000_000),
];

/// The period of a rate that follows the calendar of a time zone.
const MONTH: &str = "month";

/// Byte units that are parsed but never printed: name, multiplier, divisor.
const EXTRA_BYTE_UNITS: [(&str, u64, u64); 10] = [
    ("KB", 1_000, 1),
    ("KiB", 1 << 10, 1),
    ("MiB", 1 << 20, 1),
    ("GiB", 1 << 30, 1),
    ("TiB", 1 << 40, 1),
    ("bit", 1, 8),
    ("kbit", 1_000, 8),
    ("Mbit", 1_000_000, 8),
    ("Gbit", 1_000_000_000, 8),
    ("Tbit", 1_000_000_000_000, 8),
];

impl<'a> QuotaReader<'a> {
    fn new(text: &'a str) -> Self {
        Self { text, position: 0, last_span: 0..0, month: None }
    }

    /// The period of the calendar that was read as the period of `rate`.
    pub fn calendar_period(&mut self, rate: Rate) -> Result<CalendarPeriod, QuotaError> {
        if self.month.take().is_some() {
            return Ok(CalendarPeriod::Month);
        }
        [CalendarPeriod::Day, CalendarPeriod::Week]
            .into_iter()
            .find(|period| period.nominal() == rate.period())
            .ok_or_else(|| {
                QuotaError::not_a_calendar_period(rate.period()).with_span(self.text, 0..self.position)
            })
    }

    /// Parses the name of a time zone, which may contain slashes.
    pub fn parse_time_zone(&mut self) -> Result<TimeZone, QuotaError> {
        let start = self.skip_spaces();
        let rest = self.rest();
        let name = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
        if name.is_empty() {
            let fix = "write its name, as in `fixed-window in Asia/Shanghai`";
            return Err(self.error_at(start..start, "missing time zone", fix));
        }
        self.advance(start..start + name.len());
        TimeZone::find(name).map_err(|error| error.with_last_span(self))
    }

    /// Consumes the next word if it is `name`.
    pub fn accept(&mut self, name: &str) -> Option<()> {
        let (word, span) = self.peek();
        (word == name).then(|| self.advance(span))
    }

    /// Parses the amount after `name`, if `name` is the next word.
    pub fn parse_amount_after(&mut self, name: &str, unit: RateUnit) -> Result<Option<u64>, QuotaError> {
        if self.accept(name).is_none() {
            return Ok(None);
        }
        self.parse_amount(&format!("a number after `{name}`"), unit).map(Some)
    }

    /// Parses the next word as an amount, if it is a number.
    pub fn parse_optional_amount(&mut self, unit: RateUnit) -> Result<Option<u64>, QuotaError> {
        self.skip_spaces();
        if !self.rest().starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(None);
        }
        self.parse_amount("a number", unit).map(Some)
    }

    /// Parses a whole number; `expected` describes it in errors.
    pub fn parse_count(&mut self, expected: &str) -> Result<u64, QuotaError> {
        let number = self.parse_number(expected)?;
        self.to_integer(number)
    }

    /// Parses the number after `name`, if `name` is the next word.
    pub fn parse_decimal_after(&mut self, name: &str) -> Result<Option<f64>, QuotaError> {
        if self.accept(name).is_none() {
            return Ok(None);
        }
        self.parse_number(&format!("a number after `{name}`"))?;
        // Only the parser of the standard library rounds as its formatter does.
        let written = self.text[self.last_span()].replace('_', "");
        written.parse().map(Some).map_err(|_| self.error_at_last("not a number", "round it"))
    }

    /// Parses a period such as `10s` or `min`; `expected` describes it in errors. A month is only the period of a rate.
    pub fn parse_period(&mut self, expected: &str) -> Result<Micros, QuotaError> {
        self.skip_spaces();
        let start = self.position;
        let starts_with_digit = self.rest().starts_with(|first: char| first.is_ascii_digit());
        let count =
            if starts_with_digit { self.parse_number(expected)? } else { Decimal { mantissa: 1, scale: 1 } };
        let (name, span) = self.peek();
        if name == MONTH {
            let fix = "write a number of days, as in `30d`";
            return Err(self.error_at(span, "a month has no fixed length", fix));
        }
        let known = PERIOD_NAMES.iter().find(|(names, _)| names.contains(&name));
        let Some((_, size)) = known else {
            let names: Vec<_> = PERIOD_NAMES.iter().map(|(names, _)| names[0]).collect();
            let problem = match name {
                "" => format!("expected {expected}"),
                _ => format!("unknown period `{name}`"),
            };
            return Err(self.error_at(span, problem, format!("use one of {}", names.join(", "))));
        };
        self.advance(span);
        self.last_span.start = start;
        let micros = count.mantissa * u128::from(*size);
        if !micros.is_multiple_of(count.scale) {
            return Err(self.error_at_last("not a whole number of microseconds", "use a smaller unit"));
        }
        match u64::try_from(micros / count.scale) {
            Ok(micros) if micros <= LARGEST_EXACT => Ok(Micros::new(micros)),
            _ => Err(self.error_at_last("period too long", "the longest period is 285 years")),
        }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn last_span(&self) -> Range<usize> {
        self.last_span.clone()
    }

    /// Parses `/min` or `per 10s` after an amount. A fraction per period becomes a whole amount in a longer
    /// period; one with too many digits for that is rounded down.
    fn parse_rate(&mut self, amount: ScaledAmount) -> Result<Rate, QuotaError> {
        let (written, per) = (self.last_span(), self.skip_spaces());
        if self.rest().starts_with('/') {
            self.advance(per..per + 1);
        } else if self.accept("per").is_none() {
            let (_, span) = self.peek();
            return Err(self.error_at(
                span,
                "missing period",
                "write `/min`, `per 10s`, `at once` or `total`",
            ));
        }
        let ScaledAmount { amount: Decimal { mantissa, scale }, unit } = amount;
        let (word, month) = self.peek();
        if word == MONTH {
            // A fraction would need a longer period, and there is no longer one in the calendar.
            self.last_span = written;
            let whole = self.to_integer(amount.amount)?;
            self.advance(month.clone());
            self.month = Some(month);
            return Ok(Rate::new(whole, CalendarPeriod::Month.nominal()).with_unit(unit));
        }
        let period = self.parse_period("a period, as in `/min` or `per 10s`")?;
        let (mantissa, scale) = reduce_fraction(mantissa, scale);
        let exact = exact_rate(mantissa, u128::from(period.get()) * scale);
        match exact.or_else(|| rounded_rate(Decimal { mantissa, scale }, period)) {
            Some(rate) => Ok(rate.with_unit(unit)),
            None => Err(QuotaError::new("too many digits in the rate", "round it")
                .with_span(self.text, 0..self.position)),
        }
    }

    /// Parses the name of an algorithm and its parameters; the longest name wins.
    fn parse_algorithm(
        &mut self,
        rate: Rate,
    ) -> Result<Option<Result<AlgorithmKind, QuotaError>>, QuotaError> {
        let (first, span) = self.peek();
        if first.is_empty() || first == "burst" || first == "initial" {
            return Ok(None);
        }
        let mut two = Self {
            position: span.end,
            last_span: span.clone(),
            month: self.month.clone(),
            ..Self::new(self.text)
        };
        let (_, second) = two.peek();
        let both: String = self.text[span.start..second.end].split_whitespace().collect::<Vec<_>>().join(" ");
        two.advance(second);
        if let Some(kind) = AlgorithmKind::parse(&both, rate, &mut two) {
            *self = two;
            return Ok(Some(kind));
        }
        self.advance(span.clone());
        match AlgorithmKind::parse(first, rate, self) {
            Some(kind) => Ok(Some(kind)),
            None => {
                let names: Vec<_> = AlgorithmKind::names().collect();
                let fix = format!("use `burst`, `initial`, or one of {}", names.join(", "));
                Err(self.error_at(span, format!("unknown word `{first}`"), fix))
            }
        }
    }

    fn parse_amount(&mut self, expected: &str, unit: RateUnit) -> Result<u64, QuotaError> {
        let number = self.parse_number(expected)?;
        let read = self.parse_unit(number)?;
        if read.unit == RateUnit::Bytes && unit == RateUnit::Requests {
            return Err(self.error_at_last("byte unit for a rate of requests", "remove the unit"));
        }
        self.to_integer(read.amount)
    }

    /// Parses an optional byte unit directly after a number.
    fn parse_unit(&mut self, number: Decimal) -> Result<ScaledAmount, QuotaError> {
        let (word, span) = self.peek();
        let plain = BYTE_UNITS.iter().map(|&(name, size)| (name, size, 1));
        let known = plain.chain(EXTRA_BYTE_UNITS).find(|(name, ..)| *name == word);
        let Some((_, multiplier, divisor)) = known else {
            return Ok(ScaledAmount { amount: number, unit: RateUnit::Requests });
        };
        let start = self.last_span.start;
        self.advance(span);
        self.last_span.start = start;
        let mantissa = number.mantissa * u128::from(multiplier);
        Ok(ScaledAmount {
            amount: Decimal { mantissa, scale: number.scale * u128::from(divisor) },
            unit: RateUnit::Bytes,
        })
    }

    /// Parses a number such as `100`, `1_000` or `1.5`.
    fn parse_number(&mut self, expected: &str) -> Result<Decimal, QuotaError> {
        let start = self.skip_spaces();
        let rest = self.rest();
        let length = rest.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(rest.len());
        let written = &rest[..length];
        let (whole, fraction) = written.split_once('.').unwrap_or((written, ""));
        if !whole.starts_with(|first: char| first.is_ascii_digit())
            || fraction.contains('.')
            || written.ends_with('.')
        {
            let (word, span) = self.peek();
            let problem = match (length, word) {
                (0, "") => format!("expected {expected}"),
                (0, _) => format!("`{word}` is not a number above zero"),
                _ => format!("`{written}` is not a number"),
            };
            let span = if length == 0 { span } else { start..start + length };
            return Err(self.error_at(span, problem, format!("write {expected}")));
        }
        self.advance(start..start + length);
        let mut mantissa: u128 = 0;
        for digit in whole.chars().chain(fraction.chars()).filter_map(|c| c.to_digit(10)) {
            mantissa = mantissa * 10 + u128::from(digit);
            if mantissa > MAX_MANTISSA {
                return Err(self.error_at_last("too many digits", "round it"));
            }
        }
        let places = fraction.chars().filter(char::is_ascii_digit).count() as u32;
        if places > MAX_DECIMALS {
            return Err(self.error_at_last("too many digits", "round it"));
        }
        Ok(Decimal { mantissa, scale: 10_u128.pow(places) })
    }

    fn to_integer(&self, number: Decimal) -> Result<u64, QuotaError> {
        let Decimal { mantissa, scale } = number;
        if !mantissa.is_multiple_of(scale) {
            return Err(self.error_at_last("not a whole number", "round it"));
        }
        match u64::try_from(mantissa / scale) {
            Ok(value) if value <= LARGEST_EXACT => Ok(value),
            _ => Err(self.error_at_last("number too large", format!("the largest is {LARGEST_EXACT}"))),
        }
    }

    fn expect(&mut self, name: &str, fix: &str) -> Result<(), QuotaError> {
        let (_, span) = self.peek();
        self.accept(name).ok_or_else(|| self.error_at(span, format!("missing `{name}`"), fix))
    }

    fn expect_end(&mut self) -> Result<(), QuotaError> {
        let (word, span) = self.peek();
        match word {
            "" => Ok(()),
            _ => Err(self.error_at(span, format!("unexpected `{word}`"), "remove it")),
        }
    }

    /// The next word and its position. A word ends at whitespace or a slash.
    fn peek(&mut self) -> (&'a str, Range<usize>) {
        let start = self.skip_spaces();
        let rest = self.rest();
        let length = rest.find(|c: char| c.is_whitespace() || c == '/').unwrap_or(rest.len());
        // A lone slash is a word.
        let length = if length == 0 && !rest.is_empty() { 1 } else { length };
        (&rest[..length], start..start + length)
    }

    fn skip_spaces(&mut self) -> usize {
        let rest = self.rest();
        self.position += rest.len() - rest.trim_start().len();
        self.position
    }

    fn rest(&self) -> &'a str {
        &self.text[self.position..]
    }

    fn advance(&mut self, span: Range<usize>) {
        self.position = span.end;
        self.last_span = span;
    }

    fn error_at(&self, span: Range<usize>, problem: impl Into<String>, fix: impl Into<String>) -> QuotaError {
        QuotaError::new(problem, fix).with_span(self.text, span)
    }

    fn error_at_last(&self, problem: &str, fix: impl Into<String>) -> QuotaError {
        self.error_at(self.last_span.clone(), problem, fix)
    }
}

/// Allows every exact integer, multiplied by the largest unit, without overflow.
const MAX_MANTISSA: u128 = 10_u128.pow(24);

/// Allows the digits of every double, multiplied by the longest period, without overflow.
const MAX_DECIMALS: u32 = 18;

fn exact_rate(amount: u128, period: u128) -> Option<Rate> {
    let exact = |number| u64::try_from(number).ok().filter(|number| *number <= LARGEST_EXACT);
    Some(Rate::new(exact(amount)?, Micros::new(exact(period)?)))
}

/// Rounds a fraction up to a whole amount and extends the period in proportion, rounded up to a microsecond.
///
/// The rate is never above the written one, and below it by less than a millionth: `499.95000000000005/s` becomes
/// `500 per 1000101us`.
fn rounded_rate(mut amount: Decimal, period: Micros) -> Option<Rate> {
    const MAX_ROUNDED_MANTISSA: u128 = 10_u128.pow(17);
    const SECOND: u64 = 1_000_000;
    while amount.mantissa > MAX_ROUNDED_MANTISSA && amount.scale.is_multiple_of(10) {
        amount = Decimal { mantissa: amount.mantissa / 10, scale: amount.scale / 10 };
    }
    // Rounding by a microsecond changes a period of at least a second by at most a millionth.
    let periods = u128::from(SECOND.div_ceil(period.get().max(1)));
    let whole = amount.mantissa.checked_mul(periods)?.div_ceil(amount.scale);
    let time = whole.checked_mul(period.get().into())?.checked_mul(amount.scale)?;
    exact_rate(whole, time.checked_div(amount.mantissa)? + u128::from(!time.is_multiple_of(amount.mantissa)))
}

fn reduce_fraction(mantissa: u128, scale: u128) -> (u128, u128) {
    match (u64::try_from(mantissa), u64::try_from(scale)) {
        (Ok(small), Ok(scale)) if small > 0 => {
            let divisor = gcd(small, scale);
            ((small / divisor).into(), (scale / divisor).into())
        }
        _ if mantissa.is_multiple_of(scale) => (mantissa / scale, 1),
        _ => (mantissa, scale),
    }
}
