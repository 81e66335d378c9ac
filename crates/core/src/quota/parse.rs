//! Reads `100/min burst 20` and its relatives. Every error points at the characters that are to blame.

use super::{Quota, QuotaError, Rate, Unit, rate::BYTES};
use crate::{
    algorithm::{Kind, TokenBucket},
    math::gcd,
    units::{LARGEST_EXACT, Micros},
};
use alloc::{format, string::String, vec::Vec};
use core::ops::Range;

/// Reads a whole quota.
pub(super) fn quota(text: &str) -> Result<Quota, QuotaError> {
    let mut reader = Reader { text, position: 0, last: 0..0 };
    let whole = |error: QuotaError| error.at(text, 0..text.trim_end().len());

    let amount = reader.number("how much, as in `100/min`")?;
    let unit = reader.unit(amount)?;
    let written = reader.last_word();
    if reader.word("at").is_some() {
        reader.require("once", "write `3 at once`")?;
        reader.last = written;
        let limit = reader.whole(unit.scaled)?;
        let quota = match reader.word("lease") {
            None => Quota::at_once(limit),
            Some(()) => {
                let lease = reader.period("how long a permit is held, as in `lease 30s`")?;
                Quota::at_once_leased(limit, lease.to_duration())
            }
        };
        let quota = quota.map_err(|error| error.at_last_word(&reader))?;
        return reader.end().map(|()| quota);
    }

    let rate = reader.rate(unit)?;
    rate.validate().map_err(whole)?;
    let kind = match reader.algorithm(rate)? {
        Some(kind) => kind.map_err(whole)?,
        None => Kind::TokenBucket(<TokenBucket as crate::Algorithm>::read(rate, &mut reader).map_err(whole)?),
    };
    reader.end().map(|()| kind.into())
}

/// Reads a length of time and nothing else.
pub(super) fn time(text: &str) -> Result<Micros, QuotaError> {
    let mut reader = Reader { text, position: 0, last: 0..0 };
    let wanted = "a time, as in `12.5ms` or `2min`";
    reader.skip_spaces();
    if !reader.rest().starts_with(|first: char| first.is_ascii_digit()) {
        let (word, span) = reader.peek();
        let problem =
            if word.is_empty() { format!("missing: {wanted}") } else { format!("`{word}` is not a time") };
        return Err(reader.blame(span, problem, "write a number and a unit, as in `12.5ms` or `2min`"));
    }
    let time = reader.period(wanted)?;
    reader.end().map(|()| time)
}

/// Reads the words of a quota from left to right.
#[derive(Debug)]
pub struct Reader<'a> {
    text: &'a str,
    position: usize,
    last: Range<usize>,
}

/// A number as it was written: `mantissa / scale`.
#[derive(Clone, Copy, Debug)]
struct Decimal {
    mantissa: u128,
    scale: u128,
}

#[derive(Clone, Copy, Debug)]
struct Scaled {
    scaled: Decimal,
    unit: Unit,
}

/// Every spelling of a period.
const PERIOD_NAMES: [(&[&str], u64); 7] = [
    (&["us", "µs", "usec", "microsecond", "microseconds"], 1),
    (&["ms", "msec", "millisecond", "milliseconds"], 1_000),
    (&["s", "sec", "secs", "second", "seconds"], 1_000_000),
    (&["min", "m", "mins", "minute", "minutes"], 60_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["w", "week", "weeks"], 604_800_000_000),
];

/// Prefixes that are read besides those that are printed: multiplier, divisor.
const MORE_BYTES: [(&str, u64, u64); 10] = [
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

impl<'a> Reader<'a> {
    /// Takes the next word if it is `name`.
    pub fn word(&mut self, name: &str) -> Option<()> {
        let (word, span) = self.peek();
        (word == name).then(|| self.take(span))
    }

    /// The amount behind `name`, if `name` comes next.
    pub fn amount_after(&mut self, name: &str, unit: Unit) -> Result<Option<u64>, QuotaError> {
        if self.word(name).is_none() {
            return Ok(None);
        }
        self.amount(&format!("a number after `{name}`"), unit).map(Some)
    }

    /// The next word as an amount, if it is a number.
    pub fn amount_if_next(&mut self, unit: Unit) -> Result<Option<u64>, QuotaError> {
        self.skip_spaces();
        if !self.rest().starts_with(|first: char| first.is_ascii_digit()) {
            return Ok(None);
        }
        self.amount("a number", unit).map(Some)
    }

    /// A whole number.
    pub fn count(&mut self, wanted: &str) -> Result<u64, QuotaError> {
        let number = self.number(wanted)?;
        self.whole(number)
    }

    /// The number behind `name`, if `name` comes next.
    pub fn decimal_after(&mut self, name: &str) -> Result<Option<f64>, QuotaError> {
        if self.word(name).is_none() {
            return Ok(None);
        }
        self.number(&format!("a number after `{name}`"))?;
        // The library's reading is the only one that rounds as its printing does.
        let written = self.text[self.last_word()].replace('_', "");
        written.parse().map(Some).map_err(|_| self.blame_last("not a number", "round it"))
    }

    /// A length of time such as `10s` or `min`.
    pub fn period(&mut self, wanted: &str) -> Result<Micros, QuotaError> {
        self.skip_spaces();
        let start = self.position;
        let starts_with_digit = self.rest().starts_with(|first: char| first.is_ascii_digit());
        let count = if starts_with_digit { self.number(wanted)? } else { Decimal { mantissa: 1, scale: 1 } };
        let (name, span) = self.peek();
        let known = PERIOD_NAMES.iter().find(|(names, _)| names.contains(&name));
        let Some((_, size)) = known else {
            let names: Vec<_> = PERIOD_NAMES.iter().map(|(names, _)| names[0]).collect();
            let problem = match name {
                "" => format!("missing: {wanted}"),
                _ => format!("unknown period `{name}`"),
            };
            return Err(self.blame(span, problem, format!("use one of {}", names.join(", "))));
        };
        self.take(span);
        self.last.start = start;
        let micros = count.mantissa * u128::from(*size);
        if !micros.is_multiple_of(count.scale) {
            return Err(self.blame_last("not a whole number of microseconds", "use a smaller unit"));
        }
        match u64::try_from(micros / count.scale) {
            Ok(micros) if micros <= LARGEST_EXACT => Ok(Micros::new(micros)),
            _ => Err(self.blame_last("longer than time itself", "the longest period is 285 years")),
        }
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn last_word(&self) -> Range<usize> {
        self.last.clone()
    }

    /// `/min`, `per 10s`: makes a rate of the amount before it. A fraction of a request per period becomes
    /// whole requests in a longer one. One with too many digits for that is rounded, never up.
    fn rate(&mut self, amount: Scaled) -> Result<Rate, QuotaError> {
        let per = self.skip_spaces();
        if self.rest().starts_with('/') {
            self.take(per..per + 1);
        } else if self.word("per").is_none() {
            let (_, span) = self.peek();
            return Err(self.blame(span, "missing: per what", "write `/min`, `per 10s` or `at once`"));
        }
        let period = self.period("a period, as in `/min` or `per 10s`")?;
        let Scaled { scaled: Decimal { mantissa, scale }, unit } = amount;
        let (mantissa, scale) = reduce(mantissa, scale);
        let exact = exact_rate(mantissa, u128::from(period.get()) * scale);
        match exact.or_else(|| rounded_rate(Decimal { mantissa, scale }, period)) {
            Some(rate) => Ok(rate.of(unit)),
            None => {
                Err(QuotaError::new("a rate with too many digits", "round it")
                    .at(self.text, 0..self.position))
            }
        }
    }

    /// The algorithm whose name comes next; the longest name wins.
    fn algorithm(&mut self, rate: Rate) -> Result<Option<Result<Kind, QuotaError>>, QuotaError> {
        let (first, span) = self.peek();
        if first.is_empty() || first == "burst" {
            return Ok(None);
        }
        let mut two = Self { text: self.text, position: span.end, last: span.clone() };
        let (_, second) = two.peek();
        let both: String = self.text[span.start..second.end].split_whitespace().collect::<Vec<_>>().join(" ");
        two.take(second);
        if let Some(kind) = Kind::read(&both, rate, &mut two) {
            *self = two;
            return Ok(Some(kind));
        }
        self.take(span.clone());
        match Kind::read(first, rate, self) {
            Some(kind) => Ok(Some(kind)),
            None => {
                let names: Vec<_> = Kind::names().collect();
                let fix = format!("use `burst`, or one of {}", names.join(", "));
                Err(self.blame(span, format!("unknown word `{first}`"), fix))
            }
        }
    }

    fn amount(&mut self, wanted: &str, unit: Unit) -> Result<u64, QuotaError> {
        let number = self.number(wanted)?;
        let read = self.unit(number)?;
        if read.unit == Unit::Bytes && unit == Unit::Requests {
            return Err(self.blame_last("bytes where the rate counts requests", "give a plain number"));
        }
        self.whole(read.scaled)
    }

    /// The unit of bytes that stands directly behind a number, if any.
    fn unit(&mut self, number: Decimal) -> Result<Scaled, QuotaError> {
        let (word, span) = self.peek();
        let plain = BYTES.iter().map(|&(name, size)| (name, size, 1));
        let known = plain.chain(MORE_BYTES).find(|(name, ..)| *name == word);
        let Some((_, multiplier, divisor)) = known else {
            return Ok(Scaled { scaled: number, unit: Unit::Requests });
        };
        let start = self.last.start;
        self.take(span);
        self.last.start = start;
        let mantissa = number.mantissa * u128::from(multiplier);
        Ok(Scaled {
            scaled: Decimal { mantissa, scale: number.scale * u128::from(divisor) },
            unit: Unit::Bytes,
        })
    }

    /// A number such as `100`, `1_000` or `1.5`.
    fn number(&mut self, wanted: &str) -> Result<Decimal, QuotaError> {
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
                (0, "") => format!("missing: {wanted}"),
                (0, _) => format!("`{word}` is not a number above zero"),
                _ => format!("`{written}` is not a number"),
            };
            let span = if length == 0 { span } else { start..start + length };
            return Err(self.blame(span, problem, format!("write {wanted}")));
        }
        self.take(start..start + length);
        let mut mantissa: u128 = 0;
        for digit in whole.chars().chain(fraction.chars()).filter_map(|c| c.to_digit(10)) {
            mantissa = mantissa * 10 + u128::from(digit);
            if mantissa > MOST_DIGITS {
                return Err(self.blame_last("a number with too many digits", "round it"));
            }
        }
        let places = fraction.chars().filter(char::is_ascii_digit).count() as u32;
        if places > MOST_PLACES {
            return Err(self.blame_last("a number with too many digits", "round it"));
        }
        Ok(Decimal { mantissa, scale: 10_u128.pow(places) })
    }

    fn whole(&self, number: Decimal) -> Result<u64, QuotaError> {
        let Decimal { mantissa, scale } = number;
        if !mantissa.is_multiple_of(scale) {
            return Err(self.blame_last("not a whole number", "round it"));
        }
        match u64::try_from(mantissa / scale) {
            Ok(value) if value <= LARGEST_EXACT => Ok(value),
            _ => Err(self.blame_last("too large", format!("the largest is {LARGEST_EXACT}"))),
        }
    }

    fn require(&mut self, name: &str, fix: &str) -> Result<(), QuotaError> {
        let (_, span) = self.peek();
        self.word(name).ok_or_else(|| self.blame(span, format!("missing `{name}`"), fix))
    }

    fn end(&mut self) -> Result<(), QuotaError> {
        let (word, span) = self.peek();
        match word {
            "" => Ok(()),
            _ => Err(self.blame(span, format!("`{word}` does not belong here"), "remove it")),
        }
    }

    /// The next word and where it is: up to a space, a slash, or from letters to digits.
    fn peek(&mut self) -> (&'a str, Range<usize>) {
        let start = self.skip_spaces();
        let rest = self.rest();
        let length = rest.find(|c: char| c.is_whitespace() || c == '/').unwrap_or(rest.len());
        // A lone slash is a word of its own.
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

    fn take(&mut self, span: Range<usize>) {
        self.position = span.end;
        self.last = span;
    }

    fn blame(&self, span: Range<usize>, problem: impl Into<String>, fix: impl Into<String>) -> QuotaError {
        QuotaError::new(problem, fix).at(self.text, span)
    }

    fn blame_last(&self, problem: &str, fix: impl Into<String>) -> QuotaError {
        self.blame(self.last.clone(), problem, fix)
    }
}

/// Enough for every exact number, with room for the largest unit.
const MOST_DIGITS: u128 = 10_u128.pow(24);

/// Enough for every double, with room for the longest period.
const MOST_PLACES: u32 = 18;

fn exact_rate(amount: u128, period: u128) -> Option<Rate> {
    let exact = |number| u64::try_from(number).ok().filter(|number| *number <= LARGEST_EXACT);
    Some(Rate::new(exact(amount)?, Micros::new(exact(period)?)))
}

/// The whole amount above a fraction, in a period that is longer by as much, in microseconds, rounded up: the rate is never
/// above the one that was written, and below it by less than a millionth. `499.95000000000005/s` is `500 per 1000101us`.
fn rounded_rate(mut amount: Decimal, period: Micros) -> Option<Rate> {
    const MOST_MANTISSA: u128 = 10_u128.pow(17);
    const SECOND: u64 = 1_000_000;
    while amount.mantissa > MOST_MANTISSA && amount.scale.is_multiple_of(10) {
        amount = Decimal { mantissa: amount.mantissa / 10, scale: amount.scale / 10 };
    }
    // A microsecond is a millionth of a second: periods are at least that long.
    let periods = u128::from(SECOND.div_ceil(period.get().max(1)));
    let whole = amount.mantissa.checked_mul(periods)?.div_ceil(amount.scale);
    let time = whole.checked_mul(period.get().into())?.checked_mul(amount.scale)?;
    exact_rate(whole, time.checked_div(amount.mantissa)? + u128::from(!time.is_multiple_of(amount.mantissa)))
}

fn reduce(mantissa: u128, scale: u128) -> (u128, u128) {
    match (u64::try_from(mantissa), u64::try_from(scale)) {
        (Ok(small), Ok(scale)) if small > 0 => {
            let divisor = gcd(small, scale);
            ((small / divisor).into(), (scale / divisor).into())
        }
        _ if mantissa.is_multiple_of(scale) => (mantissa / scale, 1),
        _ => (mantissa, scale),
    }
}
